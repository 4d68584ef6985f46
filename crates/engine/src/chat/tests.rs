use serde_json::json;

use super::*;

const NONE: [(&str, &str); 0] = [];

fn render(source: &str, variables: serde_json::Value) -> Result<String, EngineError> {
    ChatTemplate::new(source, NONE)?.render(&ChatRequest { extra: variables.as_object(), ..ChatRequest::default() })
}

fn failure(source: &str, variables: serde_json::Value) -> (Option<usize>, String) {
    match render(source, variables) {
        Err(EngineError::ChatTemplate { line, message }) => (line, message),
        other => panic!("{source}: {other:?}"),
    }
}

/// Expected texts are those of jinja2 with the filter and the options of `transformers`.
#[test]
fn renders_as_jinja2_does() {
    let x = json!({
        "type": "array", "items": {"a": 1}, "q": "it's <b>&</b> \"é\" \u{1}\n", "n": null, "t": true,
        "f": 1.0, "e": 1e-5, "big": 1e22, "list": [], "map": {}
    });
    let cases = [
        // tojson
        (
            "{{ x | tojson }}",
            "{\"type\": \"array\", \"items\": {\"a\": 1}, \"q\": \"it's <b>&</b> \\\"é\\\" \\u0001\\n\", \"n\": null, \"t\": true, \"f\": 1.0, \"e\": 1e-05, \"big\": 1e+22, \"list\": [], \"map\": {}}",
        ),
        (
            "{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}",
        ),
        ("{{ [1, 2] | tojson(indent=0) }}", "[\n1,\n2\n]"),
        ("{{ [1, 2] | tojson(indent='\t') }}", "[\n\t1,\n\t2\n]"),
        ("{{ [1, 2] | tojson(indent=none) }}", "[1, 2]"),
        ("{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}", "{\"a\":[1,2]}"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", "{\"a\": 2, \"b\": 1}"),
        ("{{ 'é😀' | tojson(ensure_ascii=true) }}", "\"\\u00e9\\ud83d\\ude00\""),
        ("{{ 'é😀' | tojson(true) }}", "\"\\u00e9\\ud83d\\ude00\""),
        ("{{ {1: 2, none: 3, false: 4, 1.5: 5} | tojson }}", "{\"1\": 2, \"null\": 3, \"false\": 4, \"1.5\": 5}"),
        ("{{ 'a' | tojson | length }}", "3"),
        // Printing as Python does
        ("{{ true }} {{ none }} {{ 1.0 }} {{ missing }}", "True None 1.0 "),
        ("{{ {'a': ['it\\'s', 1.5, none]} }}", "{'a': [\"it's\", 1.5, None]}"),
        ("{{ ('a',) }}{{ (1, 2) }}", "('a',)(1, 2)"),
        ("{{ '<b>&' }}", "<b>&"),
        // White space
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("  {%+ if true %}x{% endif %}", "  x"),
        ("a {{- ' b ' -}} c", "a b c"),
        // Methods come before keys of the same name
        ("{% for k, v in x.items() %}{{ k }},{% endfor %}", "type,items,q,n,t,f,e,big,list,map,"),
        ("{{ x['items'] }}{{ x.get('none', 'd') }}{{ x.get('none') }}", "{'a': 1}dNone"),
        ("{{ ' a b '.strip().split(' ')[-1].upper() + 'x'.replace('x', 'y') }}", "By"),
        ("{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ [1, 2, 3][-2:] }}", "cbabc[2, 3]"),
        // Control
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro f(a, b='z') %}[{{ a }}{{ b }}]{% endmacro %}{{ f('x') }}{{ f(1, b=2) }}", "[xz][12]"),
        ("{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "aFalse"),
        ("{% if tools is none and documents is none and enable_thinking is not defined %}ok{% endif %}", "ok"),
        ("{{ 'a' in 'abc' }}{{ 'type' in x }}{{ x is mapping }}{{ 'a' is string }}", "TrueTrueTrueTrue"),
        ("{{ 'x' if false }}{{ 7 // 2 }} {{ 7 % 4 }} {{ '%s-%d'|format('a', 3) }}", "3 3 a-3"),
    ];
    for (source, expected) in cases {
        let got = render(source, json!({ "x": x })).unwrap_or_else(|e| panic!("{source}: {e}"));
        assert_eq!(got, expected, "{source}");
    }
}

#[test]
fn request_reaches_the_template() {
    let template = ChatTemplate::new(
        "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{{ tools | tojson }}\
         {{ add_generation_prompt }}{{ enable_thinking }}{{ depth }}{{ eos_token }}",
        [("bos_token", "<s>"), ("eos_token", "</s>")],
    )
    .unwrap();
    let messages = [json!({
        "role": "user",
        "content": [{"type": "text", "text": "hi"}],
        "name": "Ann",
    })];
    let extra = json!({"depth": 3, "eos_token": "!"});
    let request = ChatRequest {
        messages: &messages,
        tools: Some(&[json!({"z": 1, "a": 2})]),
        add_generation_prompt: true,
        enable_thinking: Some(false),
        extra: extra.as_object(),
    };
    assert_eq!(
        template.render(&request).unwrap(),
        "<s>{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi\"}], \"name\": \"Ann\"}\
         [{\"z\": 1, \"a\": 2}]TrueFalse3!"
    );
}

#[test]
fn reserved_names_are_refused() {
    let (_, message) = failure("x", json!({"messages": []}));
    assert!(message.contains("\"messages\""), "{message}");
}

#[test]
fn failures_carry_the_templates_message_and_line() {
    let cases = [
        ("a\n{{ raise_exception('no ' + 'system') }}", Some(2), "no system"),
        ("{% macro f() %}\n{{ raise_exception('deep') }}{% endmacro %}\n\n{{ f() }}", Some(2), "deep"),
        ("\n\n{% if %}", Some(3), "syntax error"),
        ("{{ missing.attribute }}", Some(1), "undefined value"),
        ("{{ 'a' | nofilter }}", Some(1), "nofilter"),
        ("{{ missing | tojson }}", Some(1), "undefined has no JSON form"),
        ("{{ 1 | tojson(indent=1000000000) }}", Some(1), "indent is above 64"),
        ("{{ strftime_now('%') }}", Some(1), "strftime_now"),
    ];
    for (source, line, part) in cases {
        let (got_line, message) = failure(source, json!({}));
        assert_eq!(got_line, line, "{source}: {message}");
        assert!(message.contains(part), "{source}: {message}");
    }
    assert_eq!(failure("{{ raise_exception('just this') }}", json!({})).1, "just this");
}

#[test]
fn runaway_templates_end() {
    let cases = [
        ("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "fuel"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'x' * 100000000000 }}", "fuel"),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
            "nested",
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            "nested",
        ),
        (
            "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
            "fuel",
        ),
        (
            "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
            "fuel",
        ),
    ];
    for (source, part) in cases {
        let (_, message) = failure(source, json!({}));
        assert!(message.contains(part), "{source}: {message}");
    }
    let (_, message) = failure(&"x".repeat(MAX_TEMPLATE_BYTES + 1), json!({}));
    assert!(message.contains("262145 bytes"), "{message}");
}

#[test]
fn strftime_now_uses_the_clock() {
    let clock = || -> jiff::ZonedDateTime { "2024-07-26T08:05:09+00:00[UTC]".parse().unwrap() };
    let template = ChatTemplate::with_clock("{{ strftime_now('%d %b %Y, %H:%M:%S %A') }}", NONE, clock);
    let text = template.unwrap().render(&ChatRequest::default()).unwrap();
    assert_eq!(text, "26 Jul 2024, 08:05:09 Friday");
}
