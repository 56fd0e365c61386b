// A client on an independent gRPC stack: node client.mjs PROTOS ADDRESS prints one JSON report.
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const [protos, address] = process.argv.slice(2);
const definition = protoLoader.loadSync('llmsrv/v1/inference.proto', { includeDirs: [protos], longs: Number });
const { llmsrv } = grpc.loadPackageDefinition(definition);
const client = new llmsrv.v1.InferenceService(address, grpc.credentials.createInsecure());

const request = (maxTokens) => ({
  text: 'Once upon a time',
  sampling: { temperature: 0 },
  stopping: { maxTokens, ignoreEos: true },
});

function stream(maxTokens, onMessage) {
  return new Promise((resolve, reject) => {
    const call = client.GenerateStream({ request: request(maxTokens) });
    call.on('data', (message) => onMessage(message, call));
    call.on('end', resolve);
    call.on('error', reject);
  });
}

function unary(message) {
  return new Promise((resolve, reject) => {
    client.Generate(message, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

const report = { text: '', messages: 0 };
await stream(12, (message) => {
  report.messages += 1;
  for (const delta of message.deltas ?? []) report.text += delta.text ?? '';
  if (message.end) report.completionTokens = message.end.usage.completionTokens;
});
report.unaryText = (await unary(request(12))).completions[0].text;

const refusal = await unary({ ...request(12), sampling: { topP: 7 } }).catch((error) => error);
report.errorCode = refusal.code;
report.errorDetailsBytes = refusal.metadata.get('grpc-status-details-bin')[0].length;

const cancelled = await stream(500, (_, call) => call.cancel()).catch((error) => error);
report.cancelledCode = cancelled?.code;

console.log(JSON.stringify(report));
client.close();
