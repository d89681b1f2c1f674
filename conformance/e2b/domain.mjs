// What the SDK does where E2B_DOMAIN is all that it knows. Writes one line of JSON for
// each thing that was tried.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { RateLimitError, Sandbox } from 'e2b'

let box

const checks = {
  'the API, and the guest by its own name': async () => {
    box = await Sandbox.create('base')
    assert.equal((await box.commands.run('echo hello')).stdout, 'hello\n')
    await box.files.write('index.html', 'a page')
    assert.equal(await box.files.read('index.html'), 'a page')
  },
  'a port by its own name': async () => {
    assert.equal(box.getHost(8000), `8000-${box.sandboxId}.${process.env.E2B_DOMAIN}`)
    await box.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
    for (const end = Date.now() + 20_000; ; await sleep(50)) {
      const res = await fetch(`https://${box.getHost(8000)}/index.html`)
      if (res.status === 200) {
        assert.equal(await res.text(), 'a page')
        break
      }
      assert.ok(Date.now() < end, `${res.status}`)
    }
  },
  'signed URLs': async () => {
    assert.equal(await (await fetch(await box.downloadUrl('index.html'))).text(), 'a page')
  },
  'many streams of one connection': async () => {
    const all = await Promise.all(Array.from({ length: 20 }, (_, n) => box.commands.run(`echo ${n}`)))
    assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 20 }, (_, n) => `${n}\n`))
  },
  'one sandbox too many is a RateLimitError': async () => {
    const other = await Sandbox.create('base')
    const error = await Sandbox.create('base', { retries: 0 }).then(() => assert.fail('a third one is made'), (e) => e)
    await other.kill()
    assert.ok(error instanceof RateLimitError, `${error.stack}`)
    assert.ok(await (await Sandbox.create('base')).kill(), 'there is room again')
  },
  'too many wrong keys are a RateLimitError, and say for how long': async () => {
    const wrong = { 'X-API-Key': `e2b_${'1'.repeat(40)}` }
    const statuses = new Set()
    for (let n = 0; n < 25; n++) {
      const res = await fetch(`https://api.${process.env.E2B_DOMAIN}/sandboxes`, { headers: wrong })
      statuses.add(res.status)
      if (res.status === 429) assert.match(res.headers.get('Retry-After'), /^[1-9][0-9]*$/)
    }
    assert.deepEqual([...statuses], [401, 429])
    const error = await Sandbox.create('base', { apiKey: wrong['X-API-Key'], retries: 0 }).then(() => assert.fail('it is made'), (e) => e)
    assert.ok(error instanceof RateLimitError, `${error.stack}`)
    assert.equal(await box.isRunning(), true, 'who has a key goes on')
    assert.equal((await Sandbox.getInfo(box.sandboxId)).state, 'running')
  },
}

for (const [name, check] of Object.entries(checks)) {
  let error = ''
  try {
    await check()
  } catch (e) {
    error = `${e?.stack ?? e} ${e?.cause ?? ''}`
  }
  process.stdout.write(JSON.stringify({ name, error }) + '\n')
}
await box?.kill().catch(() => {})
process.exit(0) // whatever is open still
