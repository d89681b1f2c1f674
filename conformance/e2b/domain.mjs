// What the SDK does where E2B_DOMAIN is all that it knows. Writes one line of JSON for
// each thing that was tried.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Sandbox } from 'e2b'

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
