// Creates sandboxes from images that are built for the request: IMAGE is their base. Writes one line of
// JSON for each check.
import assert from 'node:assert/strict'
import { Daytona, Image } from '@daytonaio/sdk'

const daytona = new Daytona()

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
