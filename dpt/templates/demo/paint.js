// Draws dense outputs as dpt.viz does: pictures, legends and the value below the pointer.

const OBJECT_IDS = 2 ** 16; // of segments: class · OBJECT_IDS + number, -1 where there is none
const hasClasses = output => ["logits", "masks"].includes(output.kind);
const className = (output, k) => output.class_names[k] ?? `class ${k}`;
const classOf = (output, i) => (output.kind === "masks" ? Math.floor(output.values[i] / OBJECT_IDS) : output.values[i]);
const tableOf = (output, colors) => colors[output.kind === "depth" ? "inferno" : "viridis"];
const scaled = (output, value) => // colours of depth are linear in inverse depth
  output.kind !== "depth" || output.is_inverse_depth ? value : value > 0 ? 1 / value : NaN;

function limitsOf(output) {
  if (output.kind !== "depth" && output.value_range) return output.value_range;
  const step = Math.max(1, Math.floor(output.values.length / 2 ** 18)), taken = [];
  for (let i = 0; i < output.values.length; i += step) taken.push(scaled(output, output.values[i]));
  const sorted = Float64Array.from(taken.filter(Number.isFinite)).sort();
  const edge = output.kind === "depth" ? 0.02 : 0;
  const at = fraction => sorted[Math.round(fraction * (sorted.length - 1))];
  return sorted.length ? [at(edge), at(1 - edge)] : [0, 1];
}

function colorsOf(output, model, limits) { // of the i-th pixel: red, green, blue, alpha
  const {values, palette, width} = output, table = tableOf(output, model.colors);
  const level = value => 255 * Math.min(Math.max((value - limits[0]) / Math.max(limits[1] - limits[0], 1e-12), 0), 1);
  if (output.kind === "masks")
    return i => {
      const k = classOf(output, i), shade = output.things[k] ? 1 - 0.13 * (values[i] % OBJECT_IDS % 4) : 1;
      const isEdge = (i >= width && values[i] !== values[i - width]) || (i % width && values[i] !== values[i - 1]);
      if (isEdge) return [255, 255, 255, 128];
      return k < 0 ? [0, 0, 0, 0] : [...palette[k].map(part => part * shade), 128];
    };
  if (hasClasses(output)) return i => [...palette[values[i]], 128]; // over the image
  if (output.channels === 3) {
    const signs = output.is_direction ? [1, -1, -1] : [1, 1, 1];
    return i => [...signs.map((sign, c) => level(sign * values[3 * i + c])), 255];
  }
  return i => {
    const value = scaled(output, values[i * (output.channels ?? 1)]);
    return Number.isFinite(value) ? [...table[Math.round(level(value))], 255] : [0, 0, 0, 255];
  };
}

export function paint(canvas, output, model) {
  const {width, height} = output, limits = hasClasses(output) ? null : limitsOf(output);
  Object.assign(canvas, {width, height});
  const context = canvas.getContext("2d"), picture = context.createImageData(width, height);
  const color = colorsOf(output, model, limits);
  for (let i = 0; i < width * height; i++) picture.data.set(color(i), 4 * i);
  context.putImageData(picture, 0, 0);
  return hasClasses(output) ? classLegend(output) : barLegend(output, model, limits);
}

const part = (tag, className, textContent = "") =>
  Object.assign(document.createElement(tag), {className, textContent});

function classLegend(output) { // frequent classes first
  const counts = new Map();
  for (let i = 0; i < output.values.length; i++) {
    const k = classOf(output, i);
    if (k >= 0) counts.set(k, (counts.get(k) ?? 0) + 1);
  }
  return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).map(k => {
    const entry = part("span", "class", className(output, k)), swatch = part("i", "swatch");
    swatch.style.background = `rgb(${output.palette[k]})`;
    entry.prepend(swatch);
    return entry;
  });
}

function barLegend(output, {colors}, [low, high]) {
  const axes = output.is_direction ? "red: right, green: up, blue: to the viewer" : "red, green and blue";
  if (output.channels === 3) return [part("span", "", axes)];
  const bar = part("div", "bar"), ticks = part("div", "ticks"), table = tableOf(output, colors);
  const stops = table.filter((_, i) => i % 15 === 0).map(color => `rgb(${color})`);
  bar.style.background = `linear-gradient(to right, ${stops})`;
  for (let k = 0; k < 5; k++) {
    const value = scaled(output, low + k / 4 * (high - low));
    ticks.append(part("span", "", value.toPrecision(3) + (k === 4 ? ` ${output.unit}` : "")));
  }
  return [bar, ticks];
}

export function describe(output, x, y) { // the value of a pixel of the map
  const i = y * output.width + x, channels = output.channels ?? 1;
  if (hasClasses(output)) return classOf(output, i) < 0 ? "no segment" : className(output, classOf(output, i));
  const values = Array.from(output.values.slice(i * channels, (i + 1) * channels), value => value.toPrecision(4));
  return `${values.join(", ")} ${output.unit}`;
}
