// Predictions by the server's Predictor, see dpt.demo.Demo.predict.

async function call(url, options) {
  const answer = await fetch(url, options);
  if (answer.ok) return answer;
  const {error} = await answer.json().catch(() => ({}));
  throw new Error(error ?? `status ${answer.status}`);
}

export async function predict(image) {
  const result = await (await call("predict", {method: "POST", body: image})).json();
  for (const output of result.outputs) {
    const bytes = Uint8Array.from(atob(output.values), letter => letter.charCodeAt(0));
    output.values = new Float32Array(bytes.buffer);
  }
  const download = async url => (await call(url)).blob();
  return {...result, files: result.files.map(({name, url}) => ({name, make: () => download(url)}))};
}
