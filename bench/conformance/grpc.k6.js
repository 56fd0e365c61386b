// k6 over gRPC: whole answers, streams, streams that are left, and refusals, side by side. See k6.py, which runs it.
import grpc from 'k6/net/grpc';
import { check } from 'k6';
import { Counter } from 'k6/metrics';

const client = new grpc.Client();
client.load([__ENV.PROTOS], 'llmsrv/v1/inference.proto');

const failed = new Counter('failed_requests');
const tokens = new Counter('generated_tokens');
const TOKENS = 16;

const each = (exec, vus) => ({ executor: 'per-vu-iterations', exec, vus, iterations: 25, maxDuration: '5m' });
export const options = {
  scenarios: {
    unary: each('unary', 4),
    streams: each('streams', 4),
    left: each('left', 1),
    refused: each('refused', 1),
  },
  thresholds: { checks: ['rate==1'], failed_requests: ['count==0'] },
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

const request = (maxTokens) => ({
  text: `Story ${__VU} of ${__ITER}:`,
  sampling: { temperature: 1, seed: __ITER },
  stopping: { max_tokens: maxTokens, ignore_eos: true },
});

let connected = false;
function connect() {
  if (!connected) client.connect(__ENV.TARGET, { plaintext: true });
  connected = true;
}

function verify(value, checks) {
  if (!check(value, checks)) failed.add(1);
}

export function unary() {
  connect();
  const answer = client.invoke('llmsrv.v1.InferenceService/Generate', request(TOKENS));
  verify(answer, {
    'unary: OK': (it) => it.status === grpc.StatusOK,
    'unary: all tokens': (it) => Number(it.message.usage.completionTokens) === TOKENS,
    'unary: its end': (it) => it.message.completions[0].finish.reason === 'FINISH_REASON_LENGTH',
  });
  tokens.add(TOKENS);
}

function streamed(maxTokens, onMessage) {
  return new Promise((resolve) => {
    const stream = new grpc.Stream(client, 'llmsrv.v1.InferenceService/GenerateStream', null);
    const found = { messages: [], error: null };
    stream.on('data', (message) => {
      found.messages.push(message);
      if (onMessage) onMessage(stream, found, resolve);
    });
    stream.on('error', (error) => { found.error = error; resolve(found); });
    stream.on('end', () => resolve(found));
    stream.write({ request: request(maxTokens) });
    stream.end();
  });
}

export async function streams() {
  connect();
  const { messages, error } = await streamed(TOKENS);
  const last = messages[messages.length - 1] || {};
  const counted = messages.reduce((sum, m) => sum + (m.deltas || []).reduce((n, d) => n + d.tokenCount, 0), 0);
  verify(messages, {
    'stream: no error': () => error === null,
    'stream: starts once': (it) => it.filter((m) => m.start).length === 1 && Boolean(it[0].start),
    'stream: ends once': (it) => it.filter((m) => m.end).length === 1 && Boolean(last.end),
    'stream: all tokens': () => Number(last.end.usage.completionTokens) === TOKENS && counted === TOKENS,
  });
  tokens.add(counted);
}

export async function left() {
  connect();
  const { messages } = await streamed(900, (stream, found, resolve) => {
    resolve(found);
    client.close();
    connected = false;
  });
  verify(messages, { 'left: something came': (it) => it.length >= 1 });
}

export function refused() {
  connect();
  const answer = client.invoke('llmsrv.v1.InferenceService/Generate', { ...request(4), sampling: { top_p: 7 } });
  verify(answer, {
    'refused: INVALID_ARGUMENT': (it) => it.status === grpc.StatusInvalidArgument,
    'refused: names the field': (it) => it.error.message.includes('sampling.top_p'),
  });
}
