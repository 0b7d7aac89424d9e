// grpc-js with the most eager keep-alive: node peer.js HOST:PORT [CA_FILE]
"use strict";
const fs = require("fs");
const grpc = require("@grpc/grpc-js");

const [target, ca] = process.argv.slice(2);
const SERVICE = "/inference.GRPCInferenceService/";
const same = (bytes) => bytes;
const client = new grpc.Client(
  target,
  ca ? grpc.credentials.createSsl(fs.readFileSync(ca)) : grpc.credentials.createInsecure(),
  {
    "grpc.keepalive_time_ms": 50,
    "grpc.keepalive_timeout_ms": 5000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.ssl_target_name_override": "localhost",
    "grpc.max_receive_message_length": -1,
  },
);

const call = (method, payload, options = {}) =>
  new Promise((resolve, reject) => {
    const begun = client.makeUnaryRequest(
      SERVICE + method, same, same, Buffer.from(payload), new grpc.Metadata(), options.call || {},
      (error, answer) => (error ? reject(error) : resolve(answer)),
    );
    if (options.cancelAfter !== undefined) setTimeout(() => begun.cancel(), options.cancelAfter);
  });

const failsWith = async (code, promise) => {
  try {
    await promise;
  } catch (error) {
    if (error.code === code) return;
    throw error;
  }
  throw new Error(`status ${code} was expected`);
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function calls() {
  for (let round = 0; round < 40; round++) {
    const now = [];
    for (let n = 0; n < 25; n++) {
      now.push(
        n % 3
          ? call("ModelInfer", "hello").then((answer) => {
              if (answer.toString() !== "hello") throw new Error("another answer");
            })
          : failsWith(
              grpc.status.CANCELLED, call("Hang", "x", { cancelAfter: Math.random() * 100 }),
            ),
      );
    }
    await Promise.all(now);
  }
}

async function deadlines() {
  const now = [];
  for (let n = 0; n < 200; n++) {
    const deadline = new Date(Date.now() + 300);
    now.push(failsWith(grpc.status.DEADLINE_EXCEEDED, call("Hang", "x", { call: { deadline } })));
  }
  await Promise.all(now);
}

function stream() {
  return new Promise((resolve, reject) => {
    const echo = client.makeBidiStreamRequest(SERVICE + "ModelStreamInfer", same, same);
    let seen = 0;
    echo.on("data", () => (++seen < 300 ? echo.write(Buffer.alloc(1000)) : echo.end()));
    echo.on("error", reject);
    echo.on("end", resolve);
    echo.write(Buffer.alloc(1000));
  });
}

async function main() {
  await Promise.all([calls(), stream()]);
  await deadlines();
  if ((await call("Blob", "16000000")).length !== 16000000) throw new Error("another size");
  await sleep(2000); // only keep-alive: forty of them
  await call("ModelInfer", "after");
  client.close();
  console.log("all well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
