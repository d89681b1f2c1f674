// The calls that programs use most, with any version of the SDK. SDK names the package. Writes
// one line of JSON for each thing that it tries.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

const { Daytona } = await import(process.env.SDK)
const daytona = new Daytona({ apiUrl: process.env.DAYTONA_API_URL, apiKey: process.env.DAYTONA_API_KEY, target: 'local' })
let box

// listed returns the IDs of a list, which was an array, then pages, then an iterator.
async function listed() {
  const list = daytona.list()
  if (list[Symbol.asyncIterator]) {
    const ids = []
    for await (const one of list) ids.push(one.id)
    return ids
  }
  const got = await list
  return (got.items ?? got).map((one) => one.id)
}

const checks = {
  'create': async () => {
    box = await daytona.create({ language: 'python', envVars: { GREETING: 'hello' }, labels: { sdk: process.env.SDK } })
    assert.ok(box.id)
  },
  'get and list': async () => {
    assert.equal((await daytona.get(box.id)).id, box.id)
    assert.ok((await listed()).includes(box.id))
  },
  'executeCommand': async () => {
    const { exitCode, result } = await box.process.executeCommand('echo $GREETING; exit 3')
    assert.deepEqual([exitCode, result.trim()], [3, 'hello'])
  },
  'codeRun': async () => {
    assert.equal((await box.process.codeRun('print(40 + 2)')).result.trim(), '42')
  },
  'sessions': async () => {
    await box.process.createSession('s')
    await box.process.executeSessionCommand('s', { command: 'cd /tmp' })
    const done = await box.process.executeSessionCommand('s', { command: 'pwd' })
    assert.match(done.stdout || done.output, /\/tmp\n/)
    const { cmdId } = await box.process.executeSessionCommand('s', { command: 'echo one; sleep 1; echo two', runAsync: true, async: true })
    for (let n = 0; (await box.process.getSessionCommand('s', cmdId)).exitCode === undefined && n < 100; n++) await sleep(100)
    const logs = await box.process.getSessionCommandLogs('s', cmdId)
    assert.match(logs.stdout ?? logs.output ?? logs, /one\ntwo\n/)
    let followed = ''
    if (box.process.getSessionCommandLogs.length > 3) {
      await box.process.getSessionCommandLogs('s', cmdId, (s) => { followed += s }, () => {})
    } else {
      await box.process.getSessionCommandLogs('s', cmdId, (s) => { followed += s })
    }
    assert.match(followed, /one\ntwo\n/)
    await box.process.deleteSession('s')
  },
  'files': async () => {
    await box.fs.uploadFile(Buffer.from('content'), '/tmp/file.txt')
    assert.equal((await box.fs.downloadFile('/tmp/file.txt')).toString(), 'content')
    assert.ok((await box.fs.listFiles('/tmp')).some((f) => f.name === 'file.txt'))
    await box.fs.deleteFile('/tmp/file.txt')
  },
  'previews': async () => {
    const { url, token } = await box.getPreviewLink(3000)
    assert.ok(url && token)
  },
  'terminals': async () => {
    if (!box.process.createPty) return
    let seen = ''
    const decoder = new TextDecoder()
    const pty = await box.process.createPty({ id: 'p', cols: 80, rows: 24, onData: (d) => { seen += decoder.decode(d, { stream: true }) } })
    await pty.waitForConnection()
    await pty.sendInput('echo sho""wn; exit 5\n')
    assert.equal((await pty.wait()).exitCode, 5)
    assert.match(seen, /shown/)
  },
  'stop and start': async () => {
    await box.stop()
    await box.start()
    assert.equal((await box.process.executeCommand('echo again')).result.trim(), 'again')
  },
  'delete': async () => {
    await box.delete().catch((e) => {
      if (process.env.SDK !== 'daytona-0.110.2' || !/not found/.test(e.message)) throw e // it requests the deleted sandbox
    })
    await assert.rejects(daytona.get(box.id))
  },
}

for (const [name, check] of Object.entries(checks)) {
  let error = ''
  try {
    await Promise.race([check(), sleep(60_000).then(() => assert.fail('it takes more than a minute'))])
  } catch (e) {
    error = `${e?.stack ?? e} ${e?.cause ?? ''}`
  }
  process.stdout.write(JSON.stringify({ name, error }) + '\n')
}
process.exit(0) // connections for events may be open
