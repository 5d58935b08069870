// The page: images in, outputs shown. What predicts them is a back end, a module with one function,
// predict(image: Blob, model) -> {image: URL, width, height, fov, note, outputs, files}. An output has its declaration
// and its values, a typed array of height × width [× channels]; a file has a name and make(), which returns a Blob.

import {describe, paint} from "./paint.js";
import {makeScene} from "./space.js";

const $ = id => document.getElementById(id);
const element = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
const model = await (await fetch("model.json")).json();
const backend = await import(`./backend_${model.backend}.js`);
const figures = new Map();
let chosen, stream, shown;

$("serve").remove();
$("title").textContent = model.title;
$("model").textContent = `${model.name}. Images stay on the computer that runs this page.`;
$("limits").textContent = `up to ${model.max_bytes / 1e6} MB and ${model.max_pixels / 1e6} megapixels`;
$("inputs").hidden = false;

function show(result) {
  if (shown?.image.startsWith("blob:")) URL.revokeObjectURL(shown.image);
  shown = result;
  $("note").textContent = result?.note ?? "";
  $("runtime").textContent = result?.runtime ?? "";
  $("outputs").replaceChildren(...(result?.outputs ?? []).map(output => figureOf(output, result)));
  const files = result ? [...result.files, ...result.outputs.map(pictureFile)] : [];
  $("files").replaceChildren(...files.map(link));
}

function pictureFile(output) {
  const canvas = figures.get(output.name).querySelector("canvas");
  return {name: `${output.folder}_color.png`, make: () => new Promise(resolve => canvas.toBlob(resolve))};
}

function link({name, make}) {
  const download = `${chosen.name.replace(/\.[^.]*$/, "")}_${name}`;
  const onclick = async event => {
    event.preventDefault();
    const content = await make().catch(error => { $("status").textContent = `${name}: ${error.message}`; });
    if (!content) return;
    const href = URL.createObjectURL(content);
    element("a", {href, download}).click();
    setTimeout(() => URL.revokeObjectURL(href), 10000);
  };
  return element("a", {href: "#", onclick, textContent: `Download ${name}`, id: `file_${name}`});
}

function figureOf(output, result) { // kept from image to image, and so is its slider
  const figure = figures.get(output.name) ?? makeFigure(output.name);
  const [, pair, value, legend, space, view] = figure.children;
  const [before, after] = pair.children;
  before.src = result.image;
  pair.style.maxWidth = view.style.maxWidth = `${Math.max(result.width, 480)}px`;
  legend.replaceChildren(...paint(after, output, model));
  value.textContent = "";
  after.onpointermove = after.onpointerdown = event => {
    const across = event.offsetX / after.clientWidth, down = event.offsetY / after.clientHeight;
    const inside = (fraction, size) => Math.min(Math.max(Math.floor(fraction * size), 0), size - 1);
    const at = ({width, height}) => [inside(across, width), inside(down, height)];
    const [x, y] = at(result);
    value.textContent = `x ${x}, y ${y}: ${describe(output, ...at(output))}`;
  };
  space.hidden = output.kind !== "depth" || output.is_inverse_depth;
  view.replaceChildren();
  space.onclick = () => {
    try {
      view.replaceChildren(...makeScene(output, before, result.fov));
    } catch (error) {
      view.textContent = error.message;
    }
  };
  return figure;
}

function makeFigure(name) {
  const figure = $("figure").content.firstElementChild.cloneNode(true);
  const [canvas, slider] = figure.querySelectorAll("canvas, input");
  figure.id = `output_${name}`;
  figure.querySelector("h2").textContent = name;
  slider.oninput = () => { canvas.style.clipPath = `inset(0 0 0 ${slider.value}%)`; };
  slider.oninput();
  figures.set(name, figure);
  return figure;
}

async function predict(file, isLive = false) {
  chosen = file;
  if (!isLive) {
    show(null);
    $("status").textContent = "predicting ...";
  }
  let result = null, fault = "";
  try {
    if (file.size > model.max_bytes) throw new Error(`more than ${model.max_bytes / 1e6} MB`);
    result = await backend.predict(file, model);
  } catch (error) {
    fault = `${file.name}: ${error.message}`;
    stopCamera();
  }
  if (file !== chosen) return; // another image was chosen in the meantime
  show(result);
  $("status").textContent = fault;
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  $("camera").textContent = "Camera";
}

$("camera").onclick = async () => { // frames are predicted one after another; those in between are dropped
  if (stream) return stopCamera();
  const video = element("video", {muted: true, playsInline: true}), frame = element("canvas");
  try {
    if (!navigator.mediaDevices) throw new Error("a page needs https or localhost for it");
    stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
    video.srcObject = stream;
    await video.play();
  } catch (error) {
    stopCamera();
    $("status").textContent = `camera: ${error.message}: allow it in the browser, or choose an image`;
    return;
  }
  $("camera").textContent = "Stop";
  $("status").textContent = "predicting ...";
  const own = stream;
  while (stream === own) {
    Object.assign(frame, {width: video.videoWidth, height: video.videoHeight});
    frame.getContext("2d").drawImage(video, 0, 0);
    const image = await new Promise(resolve => frame.toBlob(resolve, "image/jpeg", 0.95));
    await predict(new File([image], "camera.jpg"), true);
  }
};

function take(files) {
  if (!files[0]) return;
  stopCamera();
  predict(files[0]);
}

$("image").onchange = event => take(event.target.files);
document.onpaste = event => take(event.clipboardData.files);
