// OpenAI's own Node client: node openai.mjs BASE_URL prints one JSON report.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'What is the capital of Japan?' }];
const body = { model: 'smol', messages, temperature: 0, max_tokens: 12 };
const report = { models: [], text: '', finishReasons: [] };

for await (const model of client.models.list()) report.models.push(model.id);
report.whole = (await client.chat.completions.create(body)).choices[0].message.content;

const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  for (const choice of chunk.choices) {
    report.text += choice.delta.content ?? '';
    report.finishReasons.push(choice.finish_reason);
  }
  report.completionTokens = chunk.usage?.completion_tokens;
}

const refusal = await client.chat.completions.create({ ...body, top_p: 7 }).catch((error) => error);
report.refusal = [refusal.constructor.name, refusal.status, refusal.param];

const left = await client.chat.completions.create({ ...body, max_tokens: 900, ignore_eos: true, stream: true });
for await (const _ of left) break;
left.controller.abort();

console.log(JSON.stringify(report));
