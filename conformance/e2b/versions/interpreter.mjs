// What of the code interpreter's SDK needs no kernel.
import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const checks = {
  'the code interpreter: everything but code': async () => {
    const box = await Sandbox.create('base')
    try {
      assert.equal((await box.commands.run('echo hello')).stdout, 'hello\n')
      await box.files.write('a', 'b')
      assert.equal(await box.files.read('a'), 'b')
      // There is no kernel, which is told and not waited for.
      await assert.rejects(box.runCode('1+1'), /port is not open/)
    } finally {
      await box.kill()
    }
  },
}

for (const [name, check] of Object.entries(checks)) {
  let error = ''
  try {
    await check()
  } catch (e) {
    error = e?.stack ?? String(e)
  }
  process.stdout.write(JSON.stringify({ name, error }) + '\n')
}
process.exit(0)
