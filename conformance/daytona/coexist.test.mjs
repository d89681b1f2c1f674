// One sandbox by three APIs: Daytona's, E2B's and sandpit's own.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'
import { create, daytona, failure, test } from './sandbox.mjs'

// native calls sandpit's own API.
async function native(method, path, body) {
  const res = await fetch(process.env.SERVER_URL + path, {
    method,
    headers: { Authorization: `Bearer ${process.env.DAYTONA_API_KEY}`, 'Content-Type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
  const text = await res.text()
  assert.ok(res.ok, `${method} ${path}: ${res.status} ${text}`)
  return text === '' ? undefined : JSON.parse(text)
}

test('a sandbox that Daytona creates', async () => {
  const box = await create({ envVars: { FROM: 'daytona' }, labels: { team: 'a' } })
  await box.fs.uploadFile(Buffer.from('by daytona'), '/tmp/shared.txt')
  const about = await native('GET', `/v1/sandboxes/${box.id}`)
  assert.equal(about.id, box.id)
  assert.equal(about.state, 'running')
  const e2b = await Sandbox.connect(box.id)
  assert.equal(await e2b.files.read('/tmp/shared.txt'), 'by daytona')
  assert.equal((await e2b.commands.run('echo $FROM')).stdout, 'daytona\n')
  await e2b.files.write('/tmp/shared.txt', 'by e2b')
  assert.equal((await box.fs.downloadFile('/tmp/shared.txt')).toString(), 'by e2b')
  await native('POST', `/v1/sandboxes/${box.id}/stop`)
  await box.refreshData()
  assert.equal(box.state, 'stopped')
  await box.start()
  assert.equal((await native('GET', `/v1/sandboxes/${box.id}`)).state, 'running')
})

test('a sandbox that E2B creates', async () => {
  const e2b = await Sandbox.create('base')
  try {
    await e2b.files.write('/tmp/shared.txt', 'by e2b')
    const box = await daytona.get(e2b.sandboxId)
    assert.equal(box.state, 'started')
    assert.equal((await box.fs.downloadFile('/tmp/shared.txt')).toString(), 'by e2b')
    assert.equal((await box.process.executeCommand('cat /tmp/shared.txt')).result, 'by e2b')
    await box.delete(60, true)
    assert.equal(await e2b.isRunning(), false)
  } finally {
    await e2b.kill().catch(() => {})
  }
})

test('a sandbox that the native API creates', async () => {
  const made = await native('POST', '/v1/sandboxes', {})
  const box = await daytona.get(made.id)
  assert.equal(box.state, 'started')
  assert.equal((await box.process.executeCommand('echo hello')).result, 'hello\n')
  const ids = []
  for await (const one of daytona.list()) ids.push(one.id)
  assert.ok(ids.includes(made.id))
  await native('DELETE', `/v1/sandboxes/${made.id}`)
  await failure(daytona.get(made.id), 'DaytonaNotFoundError', 404)
})
