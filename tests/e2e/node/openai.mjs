// OpenAI's own Node client: node openai.mjs BASE_URL prints one JSON report.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'What is the capital of Japan?' }];
const body = { model: 'smol', messages, temperature: 0, max_tokens: 12 };
const text = { model: 'smol', prompt: 'Once upon a time', temperature: 0, max_tokens: 12 };
const report = { models: [], text: '', finishReasons: [], refusals: [] };

for await (const model of client.models.list()) report.models.push(model.id);
report.model = (await client.models.retrieve('smol')).id;
report.whole = (await client.chat.completions.create(body)).choices[0].message.content;
report.completion = (await client.completions.create(text)).choices[0].text;
const stopped = await client.completions.create({ ...text, stop: [report.completion.slice(4, 9)] });
report.stopped = [stopped.choices[0].text, stopped.choices[0].finish_reason];

const two = await client.chat.completions.create({ ...body, n: 2, seed: 1, logprobs: true, top_logprobs: 2 });
report.choices = two.choices.map((choice) => [
  choice.message.content,
  choice.logprobs.content.map((entry) => entry.token).join(''),
  choice.logprobs.content[0].top_logprobs.length,
]);

const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  for (const choice of chunk.choices) {
    report.text += choice.delta.content ?? '';
    report.finishReasons.push(choice.finish_reason);
  }
  report.completionTokens = chunk.usage?.completion_tokens;
}

for (const wrong of [{ top_p: 7 }, { model: 'other' }]) {
  const refusal = await client.chat.completions.create({ ...body, ...wrong }).catch((error) => error);
  report.refusals.push([refusal.constructor.name, refusal.status, refusal.param]);
}

const left = await client.chat.completions.create({ ...body, max_tokens: 900, ignore_eos: true, stream: true });
for await (const _ of left) break;
left.controller.abort();

console.log(JSON.stringify(report));
