// Predicts as dpt.Predictor does: reads and resizes an image, runs the network, resizes its outputs.

import {argmax, inputSize, resample, resizeImage} from "./resample.js";

const MAX_ELONGATION = 16; // as in dpt.types.preprocessing
let ready, last = Promise.resolve();

self.onmessage = ({data: {model, image}}) => {
  last = last.then(async () => { // one image at a time
    try {
      ready ??= start();
      const result = await predict(await ready, model, image);
      postMessage(result, result.outputs.map(output => output.values.buffer));
    } catch (error) {
      postMessage({error: error.message});
    }
  });
};

async function start() {
  const hasGpu = Boolean(await navigator.gpu?.requestAdapter());
  const ort = await import(hasGpu ? "./ort/ort.webgpu.min.mjs" : "./ort/ort.wasm.min.mjs");
  const threads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency, 8) : 1;
  ort.env.wasm.numThreads = threads;
  const options = {executionProviders: hasGpu ? ["webgpu", "wasm"] : ["wasm"]};
  const session = await ort.InferenceSession.create("model.onnx", options);
  const runtime = `onnxruntime-web ${ort.env.versions.web}: ${hasGpu ? "WebGPU" : `WASM, threads: ${threads}`}`;
  return {ort, session, runtime};
}

async function predict({ort, session, runtime}, model, file) {
  const {pixels, size} = await decode(file, model.max_pixels);
  const rule = model.preprocessing, input = inputSize(rule, size), [h, w] = input;
  if (h * w > MAX_ELONGATION * rule.image_size[0] * rule.image_size[1])
    throw new Error(`${size[1]} x ${size[0]} pixels are too elongated: crop the image`);
  const resized = resizeImage(pixels, size, input, rule.interpolation);
  const tensor = new ort.Tensor("float32", normalized(resized, rule), [1, 3, h, w]);
  const tensors = await session.run({[session.inputNames[0]]: tensor});
  const result = {runtime, height: size[0], width: size[1], fov: null, outputs: []}, maps = {}, lines = [];
  for (const output of model.outputs) {
    let values = tensors[output.tensor].data;
    if (!values.every(Number.isFinite)) throw new Error(`the model's ${output.name} holds NaN or infinity`);
    if (output.is_log_variance) values = values.map(value => Math.exp(-Math.exp(0.5 * value))); // to a confidence
    if (output.kind === "fov") result.fov = values[0];
    if (output.dense) maps[output.name] = atImageSize(values, output, input, size, rule.output_interpolation);
    else lines.push(line(values, output));
  }
  for (const output of model.outputs.filter(output => output.dense)) {
    const values = convert(maps[output.name], output, model);
    if (output.name === model.depth && model.sky)
      maps[model.sky.name].forEach((sky, i) => { if (sky >= model.sky.threshold) values[i] = NaN; });
    result.outputs.push({...output, values, height: size[0], width: size[1]});
  }
  return {...result, note: lines.join("\n")};
}

async function decode(file, maxPixels) { // upright, over white: RGBA (H, W, 4)
  const bitmap = await createImageBitmap(file, {colorSpaceConversion: "none"}).catch(() => {
    throw new Error("this browser reads no such image: choose JPEG, PNG or WebP");
  });
  const {width, height} = bitmap;
  if (width * height > maxPixels) throw new Error(`more than ${maxPixels / 1e6} megapixels: shrink it`);
  const context = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  return {pixels: context.getImageData(0, 0, width, height).data, size: [height, width]};
}

function normalized(pixels, {mean, std}) { // (3, h, w)
  const count = pixels.length / 4, out = new Float32Array(3 * count);
  for (let c = 0; c < 3; c++)
    for (let i = 0; i < count; i++) out[c * count + i] = (pixels[4 * i + c] - 255 * mean[c]) / (255 * std[c]);
  return out;
}

function atImageSize(values, output, input, size, rule) { // class ids (H, W), or values (H, W[, C])
  if (output.kind === "logits")
    return argmax(rule === "bilinear_scores" ? values.map(Math.exp) : values, output.channels, input, size, rule);
  const channels = output.channels ?? 1, count = size[0] * size[1], length = input[0] * input[1];
  const out = new Float32Array(count * channels);
  for (let c = 0; c < channels; c++) {
    const plane = resample(values.subarray(c * length, (c + 1) * length), input, size, 1, rule);
    for (let i = 0; i < count; i++) out[i * channels + c] = plane[i];
  }
  if (output.is_direction)
    for (let i = 0; i < count; i++) {
      const length = Math.max(Math.hypot(...out.subarray(3 * i, 3 * i + 3)), 1e-12);
      for (let c = 0; c < 3; c++) out[3 * i + c] /= length;
    }
  return out;
}

const clamped = (values, [low, high]) => values.map(value => Math.min(Math.max(value, low), high));

function convert(values, output, {calibration, depth}) { // to the range and the unit of the output
  if (output.network_range) values = clamped(values, output.network_range);
  if (!calibration || output.name !== depth) return values;
  const {scale, shift, space, min_depth, max_depth} = calibration;
  values = values.map(value => scale * value + shift);
  if (space !== "depth") values = clamped(values, [1 / max_depth, 1 / min_depth]).map(value => 1 / value);
  return clamped(values, [min_depth, max_depth]);
}

function line(values, output) { // of an output for the whole image
  const texts = Array.from(values.slice(0, 4), value => value.toPrecision(4));
  if (output.kind !== "logits") return `${output.name}: ${texts.join(", ")}`;
  const largest = Math.max(...values), best = values.indexOf(largest);
  const probability = 1 / values.reduce((sum, value) => sum + Math.exp(value - largest), 0);
  return `${output.name}: ${output.class_names[best] ?? `class ${best}`} (${probability.toPrecision(3)})`;
}
