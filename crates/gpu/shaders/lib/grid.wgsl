// Workgroups counted along y, continued along z.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y + group.z * groups.y;
}
