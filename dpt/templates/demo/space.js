// Shows depth in space: the surface that the image sees, with the image on it, turned by the pointer.

const ASSUMED_FOV = 60; // degrees, of an unknown camera
const MAX_POINTS = 2 ** 18;
const SLOPE = Math.tan(3 * Math.PI / 180); // as dpt.geometry.depth_edges; steeper surfaces are cut
const VERTEX = `#version 300 es
in vec3 point; out vec2 uv; uniform vec4 view; uniform vec2 size; // view: pivot, zoom, two angles
void main() {
  vec3 p = point - vec3(0, 0, view.x);
  vec2 c = cos(view.zw), s = sin(view.zw);
  p = vec3(c.x * p.x + s.x * p.z, p.y, c.x * p.z - s.x * p.x);
  p = vec3(p.x, c.y * p.y - s.y * p.z, c.y * p.z + s.y * p.y + view.x * view.y);
  uv = 0.5 + vec2(0.5, -0.5) * size * point.xy / point.z;
  gl_Position = vec4(size * p.xy, p.z - 0.02 * view.x, p.z);
}`;
const FRAGMENT = `#version 300 es
precision highp float; in vec2 uv; out vec4 color; uniform sampler2D image;
void main() { color = texture(image, uv); }`;

function surface({values, width, height}, focal) { // points, and triangles of neighbours
  const step = Math.max(1, Math.ceil(Math.sqrt(values.length / MAX_POINTS)));
  const w = Math.ceil(width / step), h = Math.ceil(height / step);
  const points = new Float32Array(3 * w * h), triangles = [];
  for (let i = 0; i < w * h; i++) {
    const x = i % w * step, y = Math.floor(i / w) * step, z = values[y * width + x];
    points.set([(x + 0.5 - width / 2) * z / focal, (height / 2 - y - 0.5) * z / focal, z], 3 * i);
  }
  const joined = (i, j) => { // false beside NaN, too
    const a = points[3 * i + 2], b = points[3 * j + 2];
    return a > 0 && b > 0 && Math.abs(a - b) * SLOPE * focal / step <= (a + b) / 2;
  };
  for (let i = 0; i < w * (h - 1); i++) {
    if (i % w === w - 1) continue;
    const [a, b, c, d] = [i, i + 1, i + w, i + w + 1];
    if (joined(a, b) && joined(a, c) && joined(b, c)) triangles.push(a, c, b);
    if (joined(d, b) && joined(d, c) && joined(b, c)) triangles.push(b, c, d);
  }
  const depths = points.filter((depth, i) => i % 3 === 2 && depth > 0).sort();
  return {points, triangles: Uint32Array.from(triangles), pivot: depths[depths.length >> 1]};
}

// Returns a canvas with the scene, and what the page says of the camera. An error if there is no WebGL 2.
export function makeScene(output, image, fov) {
  const {width, height} = output;
  const canvas = Object.assign(document.createElement("canvas"), {className: "scene", width, height});
  const gl = canvas.getContext("webgl2", {preserveDrawingBuffer: true});
  if (!gl) throw new Error("this browser has no WebGL 2");
  const focal = width / 2 / Math.tan((fov ?? ASSUMED_FOV) * Math.PI / 360);
  const {points, triangles, pivot} = surface(output, focal);
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  gl.useProgram(program);
  gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
  gl.bufferData(gl.ARRAY_BUFFER, points, gl.STATIC_DRAW);
  gl.enableVertexAttribArray(0);
  gl.vertexAttribPointer(0, 3, gl.FLOAT, false, 0, 0);
  gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
  gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, triangles, gl.STATIC_DRAW);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, image);
  gl.generateMipmap(gl.TEXTURE_2D);
  gl.enable(gl.DEPTH_TEST);
  let [zoom, yaw, pitch] = [1, 0, 0];
  const draw = () => {
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.uniform4f(gl.getUniformLocation(program, "view"), pivot, zoom, yaw, pitch);
    gl.uniform2f(gl.getUniformLocation(program, "size"), 2 * focal / width, 2 * focal / height);
    gl.drawElements(gl.TRIANGLES, triangles.length, gl.UNSIGNED_INT, 0);
  };
  canvas.onpointerdown = event => canvas.setPointerCapture(event.pointerId);
  canvas.onpointermove = event => {
    if (!event.buttons) return;
    [yaw, pitch] = [yaw - event.movementX / 200, Math.min(Math.max(pitch - event.movementY / 200, -1.5), 1.5)];
    draw();
  };
  canvas.onwheel = event => {
    event.preventDefault();
    zoom = Math.min(Math.max(zoom * Math.exp(event.deltaY / 1000), 0.05), 10);
    draw();
  };
  draw();
  const camera = `${(fov ?? ASSUMED_FOV).toFixed(0)}°${fov === null ? ", assumed" : ""}`;
  return [canvas, `drag: turn, wheel: zoom; field of view ${camera}`];
}
