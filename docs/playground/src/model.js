// A model that `unmask export --onnx` wrote, run by onnxruntime-web.

import { Tokenizer } from "./tokenizer.js";

// `read(name)` gives a file of the folder as bytes.
export async function open(ort, read) {
  const json = async name => JSON.parse(new TextDecoder().decode(await read(name)));
  const about = await json("model.json"), tokenizer = new Tokenizer(await json("tokenizer.json"));
  const sessions = [];
  for (const name of ["body.onnx", "head.onnx"]) sessions.push(await ort.InferenceSession.create(await read(name)));
  const [body, head] = sessions;
  return {
    about,
    tokenizer,
    async features(ids) {
      const tokens = new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
      const { features } = await body.run({ tokens });
      return { data: await features.getData(), width: features.dims[2] };
    },
    async logits({ data, width }, where) {
      const chosen = new Float32Array(where.length * width);
      where.forEach((i, m) => chosen.set(data.subarray(i * width, (i + 1) * width), m * width));
      const { logits } = await head.run({ features: new ort.Tensor("float32", chosen, [where.length, width]) });
      const all = await logits.getData(), V = logits.dims[1];
      return where.map((_, m) => all.subarray(m * V, (m + 1) * V));
    },
  };
}
