// Resizes images and maps as dpt.data.view.resize_image and dpt.functional.resize do. All of their rules are separable:
// a side is resized by a list of taps, {first, weights}, one for each new position. Maps are flat, (H, W, C).

const triangle = x => Math.max(0, 1 - Math.abs(x));
const cubic = (x, a) => {
  x = Math.abs(x);
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
};

export function roundEven(x) { // as Python and NumPy round
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x);
}

// Weights of the positions low..high, of which those outside count for the nearest one inside.
function tap(low, high, size, weight) {
  const inside = j => Math.min(Math.max(j, 0), size - 1);
  const first = inside(low), weights = new Array(inside(high) - first + 1).fill(0);
  for (let j = low; j <= high; j++) weights[inside(j) - first] += weight(j);
  return {first, weights};
}

function interpolated(x, size, a) { // at the position x, linear or cubic
  const low = Math.floor(x);
  if (a === undefined) return tap(low, low + 1, size, j => triangle(x - j));
  return tap(low - 1, low + 2, size, j => cubic(x - j, a));
}

function averaged(i, scale, size) { // over the square of a new pixel
  const start = i * scale, stop = Math.min(start + scale, size);
  const covered = j => Math.max(0, Math.min(j + 1, stop) - Math.max(j, start)) / (stop - start);
  return tap(Math.floor(start + 1e-9), Math.ceil(stop - 1e-9) - 1, size, covered);
}

function filtered(i, scale, size, kernel, reach) { // Pillow's kernels grow with the factor
  const factor = Math.max(scale, 1), centre = (i + 0.5) * scale, support = reach * factor;
  const low = Math.max(0, Math.floor(centre - support + 0.5));
  const high = Math.min(size, Math.floor(centre + support + 0.5)) - 1;
  const {first, weights} = tap(low, high, size, j => kernel((j - centre + 0.5) / factor));
  const sum = weights.reduce((a, b) => a + b);
  return {first, weights: weights.map(weight => weight / sum)};
}

const RULES = {
  bilinear_aligned: (i, scale, size, count) => interpolated(count > 1 ? i * (size - 1) / (count - 1) : 0, size),
  bilinear: (i, scale, size) => interpolated((i + 0.5) * scale - 0.5, size),
  cubic: (i, scale, size) => interpolated((i + 0.5) * scale - 0.5, size, -0.75),
  area: averaged,
  bilinear_antialias: (i, scale, size) => filtered(i, scale, size, triangle, 1),
  cubic_antialias: (i, scale, size) => filtered(i, scale, size, x => cubic(x, -0.5), 2),
};
Object.assign(RULES, {cubic_float: RULES.cubic, bicubic: RULES.cubic, bilinear_scores: RULES.bilinear});

const taps = (size, count, rule) =>
  Array.from({length: count}, (_, i) => RULES[rule](i, size / count, size, count));

// Resizes the middle axis of (outer, size, inner).
function resizeAxis(source, outer, size, inner, list, round) {
  const count = outer * list.length * inner, out = round ? new Uint8ClampedArray(count) : new Float32Array(count);
  let n = 0;
  for (let o = 0; o < outer; o++)
    for (const {first, weights} of list)
      for (let i = 0; i < inner; i++) {
        let sum = 0, at = (o * size + first) * inner + i;
        for (let k = 0; k < weights.length; k++, at += inner) sum += weights[k] * source[at];
        out[n++] = round ? Math.floor(sum + 0.500001) : sum;
      }
  return out;
}

export function resample(source, [h, w], [H, W], channels, rule, round = false) {
  const isEachRounded = round && rule.endsWith("antialias"); // Pillow rounds after each side
  const wide = resizeAxis(source, h, w, channels, taps(w, W, rule), isEachRounded);
  return resizeAxis(wide, 1, h, W * channels, taps(h, H, rule), round);
}

// An image (H, W, 4), of which values of another rule than cubic_float are rounded.
export function resizeImage(pixels, size, target, rule) {
  const grows = size.some((side, k) => target[k] > side), shrinks = size.some((side, k) => target[k] < side);
  if (rule === "cubic_area_twice") {
    const scale = Math.max(...target) / Math.max(...size);
    for (const side of [size.map(length => Math.max(1, roundEven(length * scale))), target]) {
      pixels = resizeImage(pixels, size, side, side.some((length, k) => length > size[k]) ? "cubic" : "area");
      size = side;
    }
    return pixels;
  }
  if (!grows && !shrinks) return pixels;
  if (rule === "area" && grows) rule = "bilinear"; // OpenCV does too, but shifted if the other side shrinks
  return resample(pixels, size, target, 4, rule, rule !== "cubic_float");
}

// Class ids (H, W) of logits (K, h, w).
export function argmax(logits, classes, size, target, rule) {
  const count = target[0] * target[1], length = size[0] * size[1];
  const ids = new (classes > 256 ? Uint16Array : Uint8Array)(count), best = new Float32Array(count).fill(-Infinity);
  for (let k = 0; k < classes; k++) {
    const values = resample(logits.subarray(k * length, (k + 1) * length), size, target, 1, rule);
    for (let i = 0; i < count; i++) if (values[i] > best[i]) [best[i], ids[i]] = [values[i], k];
  }
  return ids;
}

// The size of the network's input, see dpt.types.preprocessing.Preprocessing.input_size.
export function inputSize(rule, size) {
  const step = rule.multiple_of, target = rule.image_size, scales = size.map((side, k) => target[k] / side);
  const [y, x] = scales, isLonger = rule.resize === "longest_side";
  const scale = {
    lower_bound: Math.max(y, x), upper_bound: Math.min(y, x), longest_side: Math.min(y, x),
    minimal: Math.abs(1 - x) < Math.abs(1 - y) ? x : y, none: 1,
  }[rule.resize];
  return size.map((side, k) => {
    const length = scale === undefined ? target[k] : scale * side;
    let count = isLonger ? Math.floor((roundEven(length) + Math.floor(step / 2)) / step) : roundEven(length / step);
    if (rule.resize === "lower_bound") count = Math.max(count, Math.ceil(target[k] / step));
    if (rule.resize === "upper_bound" || isLonger) count = Math.min(count, Math.floor(target[k] / step));
    return Math.max(1, count) * step;
  });
}
