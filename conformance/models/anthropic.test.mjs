// Anthropic's SDK.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { address, failure, key, pixel, test } from './common.mjs'

const model = 'gpt-script'
const client = (script, options = {}) => new Anthropic({ apiKey: key, authToken: null, baseURL: address('messages', script), maxRetries: 0, ...options })
const base = { model, max_tokens: 100 }
const user = (content) => [{ role: 'user', content }]
const tools = [{
  name: 'add', description: 'Adds.',
  input_schema: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
}]
const ask = (c, options) => c.messages.create({ ...base, messages: user('x'), ...options })

test('text', async () => {
  const c = client('text')
  const request = { ...base, system: 'be brief', messages: user('hello') }
  const whole = await c.messages.create(request)
  assert.equal(whole.content[0].text, 'Grüße, “Welt” 🙂')
  assert.equal(whole.stop_reason, 'end_turn')
  assert.deepEqual([whole.usage.input_tokens, whole.usage.cache_read_input_tokens, whole.usage.output_tokens], [12, 8, 6])
  const stream = c.messages.stream(request)
  const pieces = []
  stream.on('text', (piece) => pieces.push(piece))
  const final = await stream.finalMessage()
  assert.deepEqual(pieces, ['Grüße, ', '“Welt” ', '🙂'])
  assert.equal(final.content[0].text, 'Grüße, “Welt” 🙂')
  assert.equal(final.usage.output_tokens, 6)
})

for (const script of ['tools', 'thinking']) {
  test(script, async () => {
    const c = client(script)
    const messages = user('add')
    const first = await c.messages.stream({ ...base, tools, messages }).finalMessage()
    assert.equal(first.stop_reason, 'tool_use')
    if (script === 'thinking') assert.equal(first.content[0].thinking, 'One wants a sum.')
    const results = first.content.filter((block) => block.type === 'tool_use')
      .map(({ id, input: { a, b } }) => ({ type: 'tool_result', tool_use_id: id, content: String(a + b) }))
    assert.equal(results.length, script === 'tools' ? 2 : 1)
    const second = await c.messages.create({ ...base, tools, messages: [...messages, { role: 'assistant', content: first.content }, ...user(results)] })
    assert.equal(second.content[0].text, script === 'tools' ? '3 and 34' : 'It is 3.')
  })
}

test('an image', async () => {
  const content = [{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: pixel } }, { type: 'text', text: 'what is it' }]
  assert.equal((await ask(client('image'), { messages: user(content) })).content[0].text, 'A dot.')
})

test('stops', async () => {
  const c = client('stops')
  assert.equal((await ask(c)).stop_reason, 'max_tokens')
  assert.equal((await ask(c)).stop_reason, 'refusal')
})

test('retries of the SDK', async () => {
  assert.equal((await ask(client('retry', { maxRetries: 2 }))).content[0].text, 'At last.')
})

test('failures', async () => {
  const c = client('failures')
  const expected = [
    [Anthropic.RateLimitError, 429, 'rate_limit_error', /slow down/], [Anthropic.InternalServerError, 500, 'api_error', /had an error/],
    [Anthropic.InternalServerError, 529, 'overloaded_error', /Overloaded/], [Anthropic.BadRequestError, 400, 'invalid_request_error', /too long/],
    [Anthropic.BadRequestError, 400, 'invalid_request_error', /not like this/], [Anthropic.AuthenticationError, 401, 'authentication_error', /API key/],
  ]
  for (const [kind, status, type, message] of expected) {
    const error = await failure(ask(c))
    assert.ok(error instanceof kind, `${error} is not a ${kind.name}`)
    assert.equal(error.status, status)
    assert.equal(error.error.error.type, type)
    assert.match(error.message, message)
    assert.match(error.requestID, /^req_/)
  }
})

test('what breaks in the middle', async () => {
  const c = client('broken')
  for (const message of [/too much/, /terminated|aborted|socket|premature/i]) {
    const pieces = []
    const error = await failure((async () => {
      for await (const event of await ask(c, { stream: true })) {
        if (event.type === 'content_block_delta') pieces.push(event.delta.text)
      }
    })())
    assert.equal(pieces.join(''), 'One two')
    assert.match(`${error.message} ${error.cause ?? ''}`, message)
  }
})

test('a wrong key, an unknown model, an unknown field, a result without its call', async () => {
  const c = client('strict')
  assert.ok(await failure(ask(client('strict', { apiKey: 'sk-wrong' }))) instanceof Anthropic.AuthenticationError)
  assert.ok(await failure(ask(c, { model: 'claude-none' })) instanceof Anthropic.NotFoundError)
  assert.match((await failure(ask(c, { surprise: 1 }))).message, /surprise: Extra inputs are not permitted/)
  const orphan = await failure(ask(c, { messages: user([{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'x' }]) }))
  assert.ok(orphan instanceof Anthropic.BadRequestError)
  assert.match(orphan.message, /unexpected `tool_use_id` found/)
})
