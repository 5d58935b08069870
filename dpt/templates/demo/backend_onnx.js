// Predictions in this browser, by onnxruntime-web in a worker.

const waiting = []; // for the worker, which answers in order
let worker;

export async function predict(image, model) {
  if (!worker) {
    worker = new Worker("onnx_worker.js", {type: "module"});
    worker.onmessage = event => waiting.shift()(event.data);
    worker.onerror = () => waiting.shift()({error: "this browser runs no module in a worker"});
  }
  worker.postMessage({model, image});
  const result = await new Promise(resolve => waiting.push(resolve));
  if (result.error) throw new Error(result.error);
  const files = result.outputs.map(output => ({name: `${output.folder}_npy.npy`, make: async () => npyFile(output)}));
  return {...result, image: URL.createObjectURL(image), files};
}

function npyFile({values, height, width, channels}) {
  const code = {Uint8Array: "|u1", Uint16Array: "<u2", Float32Array: "<f4"}[values.constructor.name];
  const shape = channels && values.length > height * width ? `${height}, ${width}, ${channels}` : `${height}, ${width}`;
  const header = `{'descr': '${code}', 'fortran_order': False, 'shape': (${shape}), }`.padEnd(117) + "\n";
  const start = Uint8Array.of(0x93, ...[..."NUMPY"].map(letter => letter.charCodeAt(0)), 1, 0, header.length, 0);
  return new Blob([start, header, values]);
}
