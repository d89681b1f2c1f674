// Uses sandpit's tools as a program with LangChain does: lists them, and calls some by their names with JSON.
const { createRequire } = require('node:module')
const path = require('node:path')

// npx installs packages where node does not look for them.
const installed = process.env.PATH.split(':').find((p) => p.includes('_npx'))
const from = installed ? createRequire(path.join(installed, '..', 'langchain.cjs')) : require
const { MultiServerMCPClient } = from('@langchain/mcp-adapters')

async function main() {
  const [program, url, key] = process.argv.slice(2)
  const client = new MultiServerMCPClient({
    mcpServers: {
      stdio: { transport: 'stdio', command: program, args: ['mcp', '--tools', 'file,shell,browser'], env: process.env },
      http: { transport: 'http', url: url + '/mcp?tools=file,shell', headers: { Authorization: 'Bearer ' + key } },
    },
  })
  try {
    for (const server of ['stdio', 'http']) {
      const tools = await client.getTools(server)
      const byName = Object.fromEntries(tools.map((t) => [t.name, t]))
      console.log(server, 'tools', tools.length)
      await byName.file_write.invoke({ file: 'a.txt', content: 'by LangChain' })
      console.log(server, 'read', JSON.stringify(await byName.file_read.invoke({ file: 'a.txt' })))
      console.log(server, 'shell', JSON.stringify(await byName.shell_exec.invoke({ command: 'cat a.txt; (exit 0)' })))
      for (const bad of [{ file: 'none' }, { nonsense: 1 }]) {
        const failed = await byName.file_read.invoke(bad).then(() => 'nothing', (err) => err.message)
        console.log(server, 'failed', failed)
      }
    }
  } finally {
    await client.close()
  }
}

main().catch((err) => {
  console.error(err)
  process.exit(1)
})
