// Language servers, as the SDK documents them. pylsp is one that cannot search a project by itself.
import assert from 'node:assert/strict'
import { failure, sdk, sharedSandbox, test } from './sandbox.mjs'

const source = `import os

class Greeter:
    def greet(self):
        return 'hi'

def main():
    Greeter().gr
    os.pa
`
const shared = sharedSandbox({}, async () => {
  await shared.box.fs.uploadFiles([
    { source: Buffer.from(source), destination: 'project/main.py' },
    { source: Buffer.from('class Greeting: pass\n'), destination: 'project/other/more.py' },
  ])
})

test('a language server for Python', async () => {
  const server = await shared.box.createLspServer('python', 'project')
  await failure(server.documentSymbols('project/main.py'), 'DaytonaLspServerNotInitializedError', 400)
  await server.start()
  const file = `${await shared.box.getWorkDir()}/project/main.py`
  await server.didOpen('project/main.py')
  await failure(server.didOpen('project/none.py'), 'DaytonaFileNotFoundError', 404)
  const symbols = await server.documentSymbols(file)
  const greeter = symbols.find(({ name }) => name === 'Greeter')
  assert.deepEqual([greeter.kind, greeter.location.uri, greeter.location.range.start], [5, `file://${file}`, { line: 2, character: 0 }])
  assert.deepEqual(await server.documentSymbols('main.py'), symbols) // relative to the project
  const { isIncomplete, items } = await server.completions(file, { line: 7, character: 16 })
  assert.equal(isIncomplete, false)
  assert.deepEqual(items.map(({ label, insertText }) => [label, insertText]), [['greet()', 'greet']])
  assert.ok((await server.completions('project/main.py', { line: 8, character: 9 })).items.some(({ label }) => label === 'path'))
  const names = (await server.sandboxSymbols('GREET')).map(({ name }) => name)
  assert.deepEqual(names.sort(), ['Greeter', 'Greeting', 'greet'])
  await server.didClose(file)
  await server.stop()
  await failure(server.stop(), 'DaytonaLspServerNotInitializedError', 400)
}, 120_000)

test('a language server that the sandbox has not, or a project that is missing', async () => {
  await failure((await shared.box.createLspServer('typescript', 'project')).start(), 'DaytonaError', 501, /install typescript-language-server/)
  await failure((await shared.box.createLspServer('python', 'missing')).start(), 'DaytonaFileNotFoundError', 404)
  await assert.rejects(shared.box.createLspServer('cobol', 'project'), sdk.DaytonaError)
})
