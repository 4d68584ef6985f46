// Reads PER_THREAD * 16 bytes per thread, neighbouring threads next to each other. What a memory gives.
@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sink: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4(0u);
    for (var i = 0u; i < PER_THREAD; i++) { sum += data[i * THREADS + id.x]; }
    // Never true, but the compiler cannot know.
    if sum.x + sum.y + sum.z + sum.w == 0x7fffffffu { sink[0] = sum.x; }
}
