// The class of each documented fault.
import assert from 'node:assert/strict'
import { create, daytona, failure, sdk, sharedSandbox, sleep, test, unique, within, call } from './sandbox.mjs'

const shared = sharedSandbox()

test('no key, and a wrong key', async () => {
  for (const apiKey of ['wrong', `e2b_${'0'.repeat(40)}`]) {
    const stranger = new sdk.Daytona({ apiUrl: process.env.DAYTONA_API_URL, apiKey, target: 'local' })
    await failure(stranger.get(shared.box.id), 'DaytonaAuthenticationError', 401)
    await failure(stranger.create(), 'DaytonaAuthenticationError', 401)
    await stranger[Symbol.asyncDispose]()
  }
})

test('a sandbox of another owner is one that does not exist', async () => {
  const other = new sdk.Daytona({ apiUrl: process.env.DAYTONA_API_URL, apiKey: process.env.OTHER_API_KEY, target: 'local' })
  const foreign = await failure(other.get(shared.box.id), 'DaytonaNotFoundError', 404)
  const missing = await failure(other.get('s0000000000000000000'), 'DaytonaNotFoundError', 404)
  assert.equal(foreign.message.replaceAll(shared.box.id, 'ID'), missing.message.replaceAll('s0000000000000000000', 'ID'))
  assert.equal(foreign.code, missing.code)
  const run = (id) =>
    fetch(`${shared.box.toolboxProxyUrl.replace(/\/$/, '')}/${id}/process/execute`, {
      method: 'POST', headers: { Authorization: `Bearer ${process.env.OTHER_API_KEY}`, 'Content-Type': 'application/json' }, body: '{"command":"id"}',
    })
  assert.equal((await run(shared.box.id)).status, 404)
  assert.equal((await run('s0000000000000000000')).status, 404)
  for await (const box of other.list()) assert.fail(`another owner lists ${box.id}`)
  await other[Symbol.asyncDispose]()
})

test('what is missing', async () => {
  await failure(daytona.get('no-such-sandbox'), 'DaytonaNotFoundError', 404)
  await failure(daytona.create({ snapshot: unique('no-such') }), 'DaytonaNotFoundError', 404)
  await failure(daytona.snapshot.get(unique('no-such')), 'DaytonaNotFoundError', 404)
  await failure(daytona.volume.get(unique('no-such')), 'DaytonaNotFoundError', 404)
  const { process, fs } = shared.box
  await failure(process.getSession('none'), 'DaytonaNotFoundError', 404)
  await failure(process.getPtySessionInfo('none'), 'DaytonaNotFoundError', 404)
  await failure(process.killPtySession('none'), 'DaytonaNotFoundError', 404)
  await failure(fs.downloadFile('/none'), 'DaytonaFileNotFoundError', 404)
  await failure(fs.getFileDetails('/none'), 'DaytonaFileNotFoundError', 404)
  await failure(fs.deleteFile('/none'), 'DaytonaFileNotFoundError', 404)
  await failure(fs.moveFiles('/none', '/tmp/x'), 'DaytonaFileNotFoundError', 404)
})

test('what is invalid', async () => {
  await failure(daytona.create({ autoStopInterval: -1 }), 'DaytonaInvalidArgumentError')
  const refused = async (body, status = 400) => {
    const res = await call('POST', '/sandbox', body)
    const problem = await res.json()
    assert.equal(res.status, status, JSON.stringify(problem))
    assert.equal(problem.statusCode, status)
    assert.ok(problem.message && problem.path && problem.timestamp && problem.source === 'DAYTONA_API', JSON.stringify(problem))
  }
  await refused({ autoStopInterval: -5 })
  await refused({ autoStopInterval: 5, autoPauseInterval: 5 })
  await refused({ snapshot: 'x', buildInfo: { dockerfileContent: 'FROM x\n' } })
  await refused({ labels: 'x' })
  const { process } = shared.box
  await failure(process.executeCommand(''), 'DaytonaValidationError', 400)
})

test('a sandbox that is not started', async () => {
  const box = await create()
  await box.stop()
  await failure(box.stop(), 'DaytonaValidationError', 400)
  await failure(box.process.executeCommand('true'), 'DaytonaValidationError', 400, /Is the Sandbox started\?/)
  await failure(box.fs.listFiles('/'), 'DaytonaValidationError', 400, /Is the Sandbox started\?/)
  await box.start()
  await failure(box.start(), 'DaytonaValidationError', 400)
})

test('a sandbox that is deleted', async () => {
  const box = await create()
  await box.delete(60, true)
  await failure(box.start(), 'DaytonaNotFoundError', 404)
  await failure(box.stop(), 'DaytonaNotFoundError', 404)
  await failure(box.delete(), 'DaytonaNotFoundError', 404)
  await failure(box.process.executeCommand('true'), 'DaytonaNotFoundError', 404)
  await failure(box.getPreviewLink(3000), 'DaytonaNotFoundError', 404)
})

test('what a stop interrupts', async () => {
  const box = await create()
  const command = box.process.executeCommand('echo begun; sleep 1000').then(() => undefined, (e) => e)
  await box.process.createSession('s')
  const { cmdId } = await box.process.executeSessionCommand('s', { command: 'echo up; sleep 1000', runAsync: true })
  const logs = box.process.getSessionCommandLogs('s', cmdId, () => {}, () => {}).then(() => 'ended', () => 'ended')
  const pty = await box.process.createPty({ id: 'p', onData: () => {} })
  await sleep(500)
  await within('the stop', box.stop(), 30_000)
  const error = await within('the command', command)
  assert.ok(error instanceof sdk.DaytonaError, `${error?.stack}`)
  await within('the logs', logs)
  await within('the terminal', pty.wait().catch(() => {}))
})

test('what this server does not have is an error that says so', async () => {
  const error = await failure(shared.box.computerUse.start(), 'DaytonaServiceUnavailableError', 503)
  assert.ok(error.message.length > 10, error.message)
})

test('a timeout of the client', async () => {
  await failure(shared.box.process.executeCommand('sleep 1000', undefined, undefined, 1), 'DaytonaProcessExecutionTimeoutError', 408)
  const hasty = new sdk.Daytona({ apiUrl: process.env.DAYTONA_API_URL, apiKey: process.env.DAYTONA_API_KEY, target: 'local', requestTimeoutMs: 300 })
  const box = await hasty.get(shared.box.id)
  await failure(box.process.executeCommand('sleep 5'), 'DaytonaConnectionTimeoutError')
  await hasty[Symbol.asyncDispose]()
})

test('a server that is not there', async () => {
  const lost = new sdk.Daytona({ apiUrl: 'http://127.0.0.1:9/api', apiKey: process.env.DAYTONA_API_KEY, target: 'local', useDeprecatedPolling: true })
  await failure(lost.get('x'), 'DaytonaConnectionError')
  await lost[Symbol.asyncDispose]()
})
