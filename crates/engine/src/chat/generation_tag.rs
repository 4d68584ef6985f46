//! The `{% generation %}` block of `transformers`, which marks the assistant's tokens for training.

/// Turns `{% generation %}` ... `{% endgeneration %}` into a `with` block without variables, which has
/// the same scope and the same treatment of white space, and does nothing else.
pub(super) fn replace(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        match parse(tag) {
            Some(found) => {
                out.push_str(found.head);
                out.push_str(found.keyword);
                out.push_str(found.tail);
                rest = found.rest;
            }
            None => {
                out.push_str("{%");
                rest = tag.get(2..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

struct Tag<'a> {
    head: &'a str,
    keyword: &'static str,
    tail: &'a str,
    rest: &'a str,
}

/// Reads a tag that has nothing but the keyword; `text` starts with `{%`.
fn parse(text: &str) -> Option<Tag<'_>> {
    let body = text.get(2..)?;
    let word = body.trim_start_matches(['-', '+']).trim_start();
    let head = text.get(..text.len() - word.len())?;
    let (after, keyword) = if let Some(after) = word.strip_prefix("generation") {
        (after, "with")
    } else {
        (word.strip_prefix("endgeneration")?, "endwith")
    };
    let close = after.trim_start().trim_start_matches(['-', '+']);
    let rest = close.strip_prefix("%}")?;
    let tail = after.get(..after.len() - rest.len())?;
    Some(Tag { head, keyword, tail, rest })
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn only_the_tag_changes() {
        let cases = [
            ("{% generation %}a{% endgeneration %}", "{% with %}a{% endwith %}"),
            ("{%- generation -%}a{%+endgeneration+%}", "{%- with -%}a{%+endwith+%}"),
            ("{%\n generation\n%}é{%endgeneration%}", "{%\n with\n%}é{%endwith%}"),
            ("{% generations %}", "{% generations %}"),
            ("{% set generation = 1 %}{{ generation }}", "{% set generation = 1 %}{{ generation }}"),
            ("{% generation", "{% generation"),
            ("{%", "{%"),
            ("{% if x %}{% generation %}", "{% if x %}{% with %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(replace(source), expected, "{source}");
        }
    }
}
