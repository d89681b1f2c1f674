// OpenAI's SDK with both of its protocols.
import assert from 'node:assert/strict'
import OpenAI, { AzureOpenAI } from 'openai'
import { address, failure, key, pixel, test } from './common.mjs'

const model = 'gpt-script'
const client = (protocol, script, options = {}) =>
  new OpenAI({ apiKey: key, baseURL: `${address(protocol, script)}/v1`, maxRetries: 0, ...options })
const user = (content) => [{ role: 'user', content }]
const parameters = { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] }
const hello = { model, messages: [{ role: 'system', content: 'be brief' }, ...user('hello')] }
const tool = { type: 'function', function: { name: 'add', parameters } }

test('chat: text', async () => {
  const c = client('chat', 'text')
  const whole = await c.chat.completions.create(hello)
  assert.equal(whole.choices[0].message.content, 'Grüße, “Welt” 🙂')
  assert.equal(whole.choices[0].finish_reason, 'stop')
  assert.deepEqual([whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens, whole.usage.completion_tokens], [20, 8, 6])
  const stream = c.chat.completions.stream({ ...hello, stream_options: { include_usage: true } })
  const pieces = []
  stream.on('content', (piece) => pieces.push(piece))
  const final = await stream.finalChatCompletion()
  assert.deepEqual(pieces, ['Grüße, ', '“Welt” ', '🙂'])
  assert.equal(final.choices[0].message.content, 'Grüße, “Welt” 🙂')
  assert.equal(final.usage.total_tokens, 26)
})

for (const stream of [true, false]) {
  test(`chat: tools, which the SDK calls, stream ${stream}`, async () => {
    const seen = []
    const runner = client(stream ? 'chat' : 'chat-whole', 'tools').chat.completions.runTools({
      model, stream, messages: user('add'),
      tools: [{ type: 'function', function: { name: 'add', parameters, parse: JSON.parse, function: ({ a, b }) => { seen.push([a, b]); return String(a + b) } } }],
    })
    assert.equal(await runner.finalContent(), '3 and 34')
    assert.deepEqual(seen, [[1, 2], [30, 4]])
  })
}

test('chat: an image', async () => {
  const content = [{ type: 'text', text: 'what is it' }, { type: 'image_url', image_url: { url: `data:image/png;base64,${pixel}`, detail: 'low' } }]
  const answer = await client('chat', 'image').chat.completions.create({ model, messages: user(content) })
  assert.equal(answer.choices[0].message.content, 'A dot.')
})

test('chat: stops', async () => {
  const c = client('chat', 'stops')
  assert.equal((await c.chat.completions.create({ model, messages: user('x') })).choices[0].finish_reason, 'length')
  assert.equal((await c.chat.completions.create({ model, messages: user('x') })).choices[0].finish_reason, 'content_filter')
})

test('Azure', async () => {
  const c = new AzureOpenAI({ apiKey: key, endpoint: address('azure', 'text'), apiVersion: '2024-08-01-preview', deployment: model, maxRetries: 0 })
  const answer = await c.chat.completions.create(hello)
  assert.equal(answer.choices[0].message.content, 'Grüße, “Welt” 🙂')
})

test('responses: text', async () => {
  const c = client('responses', 'text')
  const request = { model, instructions: 'be brief', input: 'hello', store: false }
  const whole = await c.responses.create(request)
  assert.equal(whole.output_text, 'Grüße, “Welt” 🙂')
  assert.equal(whole.status, 'completed')
  assert.deepEqual([whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens, whole.usage.output_tokens], [20, 8, 6])
  const stream = c.responses.stream(request)
  const pieces = []
  stream.on('response.output_text.delta', (event) => pieces.push(event.delta))
  const final = await stream.finalResponse()
  assert.deepEqual(pieces, ['Grüße, ', '“Welt” ', '🙂'])
  assert.equal(final.output_text, 'Grüße, “Welt” 🙂')
})

for (const script of ['tools', 'thinking']) {
  test(`responses: ${script}`, async () => {
    const c = client('responses', script)
    const request = {
      model, store: false, input: user('add'), include: ['reasoning.encrypted_content'],
      tools: [{ type: 'function', name: 'add', parameters, strict: false }],
    }
    const first = await c.responses.stream(request).finalResponse()
    const calls = first.output.filter((item) => item.type === 'function_call')
    assert.deepEqual(calls.map((call) => JSON.parse(call.arguments)), script === 'tools' ? [{ a: 1, b: 2 }, { a: 30, b: 4 }] : [{ a: 1, b: 2 }])
    const results = calls.map((call) => {
      const { a, b } = JSON.parse(call.arguments)
      return { type: 'function_call_output', call_id: call.call_id, output: String(a + b) }
    })
    const items = first.output.map(({ parsed_arguments: _, ...item }) => item.content ? { ...item, content: item.content.map(({ parsed: _, ...part }) => part) } : item)
    const second = await c.responses.create({ ...request, input: [...request.input, ...items, ...results] })
    assert.equal(second.output_text, script === 'tools' ? '3 and 34' : 'It is 3.')
    assert.equal(first.output[0].type, script === 'tools' ? 'message' : 'reasoning')
  })
}

test('responses: an image', async () => {
  const content = [{ type: 'input_text', text: 'what is it' }, { type: 'input_image', image_url: `data:image/png;base64,${pixel}`, detail: 'auto' }]
  const answer = await client('responses', 'image').responses.create({ model, input: user(content) })
  assert.equal(answer.output_text, 'A dot.')
})

test('responses: stops', async () => {
  const c = client('responses', 'stops')
  const half = await c.responses.stream({ model, input: 'x' }).finalResponse()
  assert.equal(half.status, 'incomplete')
  assert.equal(half.incomplete_details.reason, 'max_output_tokens')
  const refused = await c.responses.create({ model, input: 'x' })
  assert.deepEqual(refused.output[0].content, [{ type: 'refusal', refusal: 'I cannot' }])
})

const protocols = {
  chat: { ask: (c, options) => c.chat.completions.create({ model, messages: user('x'), ...options }), text: (a) => a.choices[0].message.content },
  responses: { ask: (c, options) => c.responses.create({ model, input: 'x', ...options }), text: (a) => a.output_text },
}
for (const [protocol, { ask, text }] of Object.entries(protocols)) {
  test(`${protocol}: retries of the SDK`, async () => {
    assert.equal(text(await ask(client(protocol, 'retry', { maxRetries: 2 }))), 'At last.')
  })

  test(`${protocol}: failures`, async () => {
    const c = client(protocol, 'failures')
    const expected = [
      [OpenAI.RateLimitError, 429, /slow down/, 'rate_limit_exceeded'], [OpenAI.InternalServerError, 500, /had an error/, null],
      [OpenAI.InternalServerError, 503, /Overloaded/, null], [OpenAI.BadRequestError, 400, /too long/, 'context_length_exceeded'],
      [OpenAI.BadRequestError, 400, /not like this/, null], [OpenAI.AuthenticationError, 401, /Incorrect API key/, 'invalid_api_key'],
    ]
    for (const [kind, status, message, code] of expected) {
      const error = await failure(ask(c))
      assert.ok(error instanceof kind, `${error} is not a ${kind.name}`)
      assert.equal(error.status, status)
      assert.match(error.message, message)
      assert.equal(error.code, code)
      assert.match(error.requestID, /^req_/)
    }
  })

  test(`${protocol}: what breaks in the middle`, async () => {
    const c = client(protocol, 'broken')
    for (const message of [/too much/, /terminated|aborted|socket|premature/i]) {
      const pieces = []
      const error = await failure((async () => {
        for await (const event of await ask(c, { stream: true })) {
          const piece = protocol === 'chat' ? event.choices[0].delta.content : event.delta
          if (piece) pieces.push(piece)
        }
      })())
      assert.equal(pieces.join(''), 'One two')
      assert.match(`${error.message} ${error.cause ?? ''}`, message)
    }
  })

  test(`${protocol}: a wrong key, an unknown model, an unknown field`, async () => {
    const c = client(protocol, 'strict')
    assert.ok(await failure(ask(client(protocol, 'strict', { apiKey: 'sk-wrong' }))) instanceof OpenAI.AuthenticationError)
    const missing = await failure(ask(c, { model: 'gpt-none' }))
    assert.ok(missing instanceof OpenAI.NotFoundError)
    assert.equal(missing.code, 'model_not_found')
    const unknown = await failure(ask(c, { surprise: 1 }))
    assert.ok(unknown instanceof OpenAI.BadRequestError)
    assert.deepEqual([unknown.code, unknown.param], ['unknown_parameter', 'surprise'])
  })
}

test('chat: a result without its call', async () => {
  const error = await failure(client('chat', 'strict').chat.completions.create({
    model, tools: [tool], messages: [...user('x'), { role: 'tool', tool_call_id: 'call_1', content: 'x' }],
  }))
  assert.ok(error instanceof OpenAI.BadRequestError)
  assert.match(error.message, /must be a response to/)
})
