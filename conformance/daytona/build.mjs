// Creates sandboxes from images that are built for the request: IMAGE is their base. Writes one line of
// JSON for each check.
import assert from 'node:assert/strict'
import crypto from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { Daytona, Image } from '@daytonaio/sdk'

const daytona = new Daytona()

// prepareFiles creates files to copy, one of which is uploaded in several parts.
function prepareFiles() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'daytona-files-'))
  fs.mkdirSync(path.join(dir, 'src', 'deep'), { recursive: true })
  fs.writeFileSync(path.join(dir, 'one.txt'), 'one')
  fs.writeFileSync(path.join(dir, 'src', 'a.py'), 'print("a")')
  fs.writeFileSync(path.join(dir, 'src', 'deep', 'b.txt'), 'b')
  fs.writeFileSync(path.join(dir, 'large'), crypto.randomBytes(13 << 20))
  return dir
}

const checks = {
  'onSnapshotCreateLogs gets the lines of the build while it runs': async () => {
    const lines = []
    const image = Image.base(process.env.IMAGE).runCommands('echo fir""st', 'sleep 2', 'echo sec""ond')
    const box = await daytona.create({ image }, { timeout: 120, onSnapshotCreateLogs: (line) => lines.push(line) })
    const text = lines.join('\n')
    assert.match(text, /first[^]*second/)
    assert.ok(lines.length > 1, `all of it came at once: ${text}`)
    assert.equal(box.state, 'started')
    assert.equal((await box.process.executeCommand('echo works')).result.trim(), 'works')
    await box.delete()
  },
  'addLocalFile, addLocalDir and dockerfileCommands copy files': async () => {
    const dir = prepareFiles()
    try {
      const image = Image.base(process.env.IMAGE)
        .addLocalFile(path.join(dir, 'one.txt'), '/files/one.txt').addLocalDir(path.join(dir, 'src'), '/files/src').addLocalFile(path.join(dir, 'large'), '/files/large')
        .dockerfileCommands(['COPY ["*.txt", "/files/all/"]', 'COPY src/deep /files/deep'], dir)
      for (let n = 0; n < 2; n++) { // the second time, nothing is uploaded or built
        const box = await daytona.create({ image }, { timeout: 120 })
        const { result } = await box.process.executeCommand('cd /files; cat one.txt src/a.py src/deep/b.txt all/one.txt deep/b.txt; sha256sum large')
        const sum = crypto.createHash('sha256').update(fs.readFileSync(path.join(dir, 'large'))).digest('hex')
        assert.equal(result.trim(), `oneprint("a")boneb${sum}  large`)
        await box.delete()
      }
      const name = `copies-${process.pid}`
      const lines = []
      const snapshot = await daytona.snapshot.create({ name, image, resources: { cpu: 1, memory: 1, disk: 3 } }, { onLogs: (line) => lines.push(line) })
      assert.deepEqual([snapshot.state, snapshot.name, snapshot.cpu, snapshot.mem, snapshot.disk], ['active', name, 1, 1, 3])
      assert.match(lines.join('\n'), /Created snapshot/)
      const box = await daytona.create({ snapshot: name })
      assert.equal((await box.process.executeCommand('cat /files/one.txt')).result, 'one')
      await box.delete()
      await daytona.snapshot.delete(snapshot)
    } finally {
      fs.rmSync(dir, { recursive: true })
    }
  },
  'a build that fails': async () => {
    const image = Image.base(process.env.IMAGE).runCommands('echo bro""ken; exit 7')
    await assert.rejects(daytona.create({ image }, { timeout: 120 }), (e) => /exit status 7/.test(e.message) || assert.fail(e))
    const lines = []
    await assert.rejects(daytona.create({ image }, { timeout: 120, onSnapshotCreateLogs: (line) => lines.push(line) }), /exit status 7/)
    assert.match(lines.join('\n'), /broken/)
  },
}

for (const [name, check] of Object.entries(checks)) {
  let error = ''
  try {
    await check()
  } catch (e) {
    error = e.stack
  }
  console.log(JSON.stringify({ name, error }))
}
process.exit() // the SDK keeps a connection open
