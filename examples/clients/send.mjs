// Sends a job from JavaScript, follows it and prints its result. It needs Node 18 or later, and no packages:
//
//     fennelq token add node --may see,see_arguments,send
//     fennelq api --tokens tokens
//     FENNELQ_TOKEN=fq_… node examples/clients/send.mjs shop.tasks:welcome '{"user_id": 42}'

const base = process.env.FENNELQ_URL ?? "http://127.0.0.1:3367";
const token = process.env.FENNELQ_TOKEN;
const [task, kwargs = "{}"] = process.argv.slice(2);

async function call(method, path, body, headers = {}) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await fetch(`${base}/api/v1${path}`, {
      method,
      headers: {
        "Content-Type": "application/json",
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
        ...headers,
      },
      body,
    });
    if (answer.ok) return answer;
    const problem = await answer.json();
    // 503: Redis is away for a moment. The Idempotency-Key makes the repeated call safe.
    if (answer.status !== 503 || attempt === 5) throw new Error(`${problem.title}: ${problem.detail}`);
    await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
  }
}

async function* eventsOf(answer) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of answer.body) {
    text += decoder.decode(chunk, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const found = /^event: (.*)\ndata: (.*)$/m.exec(block);
      if (found) yield { kind: found[1], data: JSON.parse(found[2]) };
    }
  }
}

try {
  const key = `"${crypto.randomUUID()}"`;
  // The arguments are passed on as text: JavaScript would round integers above 2^53.
  const body = `{"task": ${JSON.stringify(task)}, "kwargs": ${kwargs}}`;
  const sent = await (await call("POST", "/jobs", body, { "Idempotency-Key": key })).json();
  console.log(`sent ${sent.id}`);
  for await (const { kind, data } of eventsOf(await call("GET", `/jobs/${sent.id}/events`))) {
    if (kind === "progress") console.log(`${data.done} of ${data.total}`);
  }
  const ended = await (await call("GET", `/jobs/${sent.id}/result?wait=30`)).json();
  console.log(`${ended.status}: ${JSON.stringify(ended.result ?? ended.error)}`);
  process.exitCode = ended.status === "SUCCESS" ? 0 : 1;
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
