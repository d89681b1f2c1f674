package toolbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	// maxServers is how many language servers a sandbox may have.
	maxServers = 8
	// serverStartTimeout bounds the start of one, and the first request about its project,
	// lspTimeout a later request, and serverStopTimeout its end.
	serverStartTimeout = 2 * time.Minute
	lspTimeout         = 30 * time.Second
	serverStopTimeout  = 5 * time.Second
	// maxMessage bounds a message of one, in bytes, and messageCost is the memory that each of
	// its bytes takes.
	maxMessage  = 16 << 20
	messageCost = 4
	// maxQueued is how many messages may wait until a language server reads them.
	maxQueued = 64
	// maxOpen is how many documents may be open.
	maxOpen = 10_000
	// maxServerErrors bounds what is kept of the errors that one writes, in bytes.
	maxServerErrors = 4 << 10
)

// language has the programs of a language server, directories besides the search path where their
// usual installers put them, and patterns of the names of source files. "~" is the home directory
// and "." the project.
type language struct {
	args    []string
	dirs    []string
	sources []string
}

// languages returns the known languages by their IDs.
func languages() map[string]language {
	script := language{[]string{"typescript-language-server", "--stdio"}, []string{"./node_modules/.bin", "/usr/local/bin"}, []string{"*.ts", "*.tsx", "*.js", "*.jsx", "*.mjs"}}
	return map[string]language{
		"python": {[]string{"pylsp"}, []string{"~/.local/bin", "/usr/local/bin"}, []string{"*.py"}}, "typescript": script, "javascript": script,
		"go": {[]string{"gopls"}, []string{"~/go/bin", "/go/bin", "/usr/local/go/bin"}, []string{"*.go"}},
	}
}

// commands returns the commands that may start the language server, in order.
func (l language) commands(home, project string) [][]string {
	list := [][]string{l.args}
	for _, dir := range l.dirs {
		switch dir[0] {
		case '~':
			dir = path.Join(home, dir[1:])
		case '.':
			dir = path.Join(project, dir)
		}
		list = append(list, append([]string{path.Join(dir, l.args[0])}, l.args[1:]...))
	}
	return list
}

// serverKey names a language server of a sandbox.
type serverKey struct{ language, project string }

// languageServers are those of one sandbox. All methods may be called concurrently.
type languageServers struct {
	mu       sync.Mutex
	all      map[serverKey]*languageServer
	starting map[serverKey]bool
}

var errNotInitialized = withCode("LSP_SERVER_NOT_INITIALIZED", sandpit.Errorf(sandpit.Invalid, "the language server is not running: start it first"))

// find returns a running language server. Invalid: it is not running.
func (l *languageServers) find(key serverKey) (*languageServer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server := l.all[key]
	if server == nil || server.hasEnded() {
		return nil, errNotInitialized
	}
	return server, nil
}

// start starts a language server unless it is running.
//
// Unsupported: the sandbox has none for the language. Exhausted: it has too many running ones.
// Conflict: another call is starting it.
func (l *languageServers) start(ctx context.Context, c *call, set *programs, key serverKey) error {
	if _, err := l.find(key); err == nil {
		return nil
	}
	if err := l.beginStart(key); err != nil {
		return err
	}
	defer l.endStart(key)
	server, err := c.launchServer(ctx, set, key)
	if err != nil {
		return err
	}
	if err := server.initialize(ctx, key.project); err != nil {
		server.end(err)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[serverKey]*languageServer)
	}
	l.all[key] = server
	return nil
}

// beginStart counts a language server that is being started, and removes those that have ended.
//
// Exhausted: too many are running. Conflict: another call is starting this one.
func (l *languageServers) beginStart(key serverKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starting[key] {
		return sandpit.Errorf(sandpit.Conflict, "start a language server: another call is starting it")
	}
	for key, server := range l.all {
		if server.hasEnded() {
			delete(l.all, key)
		}
	}
	if n := len(l.all) + len(l.starting); n >= maxServers {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the sandbox has %d language servers, its maximum", n), "stop one")
	}
	if l.starting == nil {
		l.starting = make(map[serverKey]bool)
	}
	l.starting[key] = true
	return nil
}

// endStart ends the start of a language server, which has succeeded or failed.
func (l *languageServers) endStart(key serverKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.starting, key)
}

// stop ends a language server. Invalid: it is not running.
func (l *languageServers) stop(ctx context.Context, key serverKey) error {
	server, err := l.find(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, serverStopTimeout)
	defer cancel()
	_, release, err := server.request(ctx, "shutdown", nil)
	if err == nil {
		release()
		err = server.notify(ctx, "exit", nil)
	}
	if err == nil {
		select {
		case <-server.ended:
		case <-ctx.Done():
		}
	}
	server.end(errNotInitialized) // kills it if it has not ended
	return nil
}

// languageServer is a language server that runs in the sandbox. All methods may be called
// concurrently.
type languageServer struct {
	process sandpit.Process
	account *memory.Account // of its messages, until it ends
	stderr  *workspace.Window
	out     chan []byte // messages that it has not read yet
	ended   chan struct{}
	cancel  context.CancelFunc // of its process

	mu        sync.Mutex
	err       error // why it has ended
	last      int64 // the ID of the last request
	pending   map[int64]chan serverMessage
	open      map[string]bool // the URIs of open documents
	hasLoaded bool            // the server has responded to a request about its project
}

// serverMessage is a message of the protocol.
type serverMessage struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *serverError    `json:"error,omitempty"`

	size int64 // reserved bytes of memory
}

// serverError is an error of the protocol.
type serverError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// launchServer starts the process of a language server.
func (c *call) launchServer(ctx context.Context, set *programs, key serverKey) (*languageServer, error) {
	home, err := c.homeDir(ctx)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(set.ctx)
	server := &languageServer{
		account: set.open(), stderr: workspace.NewWindow(maxServerErrors), out: make(chan []byte, maxQueued), ended: make(chan struct{}), cancel: cancel,
		pending: make(map[int64]chan serverMessage), open: make(map[string]bool),
	}
	known := languages()[key.language]
	for _, args := range known.commands(home, key.project) {
		stdin, toServer := io.Pipe()
		fromServer, stdout := io.Pipe()
		server.process, err = set.starter.Start(running, sandpit.Command{Args: args, Dir: key.project, Stdin: stdin, Stdout: stdout, Stderr: server.stderr})
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue
		}
		if err == nil && !server.run(running, set, toServer, fromServer, func() { _ = errors.Join(stdin.Close(), stdout.Close()) }) {
			err = set.endError()
		}
		if err != nil {
			cancel()
			server.account.Close()
		}
		return server, err
	}
	cancel()
	server.account.Close()
	return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the sandbox has no language server for %s: no program %s", key.language, known.args[0]),
		"install "+known.args[0]+" in the sandbox or its image")
}

// run starts the goroutines of a server whose process has started. It returns false, after it has
// killed the process, if the programs of the sandbox are closed.
func (l *languageServer) run(running context.Context, set *programs, to *io.PipeWriter, from *io.PipeReader, closeOthers func()) bool {
	wait := func() {
		_, err := l.process.Wait(running)
		if running.Err() != nil {
			l.kill(running)
		}
		closeOthers()
		l.end(l.exitError(err))
	}
	read := func() {
		err := l.readMessages(bufio.NewReader(from))
		_ = from.CloseWithError(err) // never fails
		l.end(err)
	}
	if !set.follow(wait) {
		l.kill(running)
		closeOthers()
		return false
	}
	// If the set is closed now, wait ends the process.
	return set.follow(func() { l.writeMessages(running, to) }) && set.follow(read)
}

// writeMessages sends messages to the process until that ends.
func (l *languageServer) writeMessages(running context.Context, to *io.PipeWriter) {
	defer to.Close()
	for {
		select {
		case message := <-l.out:
			if _, err := to.Write(message); err != nil {
				return // the process has ended
			}
			l.account.Return(int64(len(message)))
		case <-running.Done():
			return
		}
	}
}

// kill ends the process.
func (l *languageServer) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverStopTimeout)
	defer cancel()
	_ = l.process.Signal(ctx, sandpit.SIGKILL) // it may have ended
}

// exitError returns why the process has ended.
func (l *languageServer) exitError(err error) error {
	said := strings.TrimSpace(l.stderr.String())
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "the language server has ended: %w", err)
	}
	return sandpit.Errorf(sandpit.Unavailable, "the language server has ended: %.500s", said)
}

// end fails all requests, also later ones, and ends the process. Only the first call has an
// effect.
func (l *languageServer) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.ended)
	l.cancel()
	l.account.Close()
}

func (l *languageServer) hasEnded() bool { return isClosed(l.ended) }

// endError returns why the server has ended.
func (l *languageServer) endError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// textDocument names a document.
type textDocument struct {
	URI string `json:"uri"`
}

// methodInitialize is the first request of the protocol.
const methodInitialize = "initialize"

// initialize introduces the client to the server.
func (l *languageServer) initialize(ctx context.Context, project string) error {
	ctx, cancel := context.WithTimeout(ctx, serverStartTimeout)
	defer cancel()
	root := toURI(project)
	type object = map[string]any
	_, release, err := l.request(ctx, methodInitialize, object{
		"processId": nil, "clientInfo": object{"name": "sandpit"}, "rootUri": root, "rootPath": project,
		"workspaceFolders": []object{{"uri": root, "name": path.Base(project)}},
		"capabilities": object{
			"textDocument": object{
				"synchronization": object{}, "documentSymbol": object{"hierarchicalDocumentSymbolSupport": false},
				"completion": object{"completionItem": object{"snippetSupport": false}, "contextSupport": true},
			},
			"workspace": object{"symbol": object{}, "workspaceFolders": true, "configuration": true},
		},
	})
	if err != nil {
		return err
	}
	release()
	return l.notify(ctx, "initialized", object{})
}

// openDocument sends the content of a document.
func (l *languageServer) openDocument(ctx context.Context, uri, languageID, text string) error {
	if err := l.closeDocument(ctx, uri); err != nil {
		return err
	}
	if n := l.countOpen(); n >= maxOpen {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "open %.200s: %d documents are open, the limit is reached", uri, n), "close one")
	}
	document := map[string]any{"uri": uri, "languageId": languageID, "version": 1, "text": text}
	if err := l.notify(ctx, "textDocument/didOpen", map[string]any{"textDocument": document}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[uri] = true
	return nil
}

// countOpen returns how many documents are open.
func (l *languageServer) countOpen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// closeDocument closes a document if it is open.
func (l *languageServer) closeDocument(ctx context.Context, uri string) error {
	l.mu.Lock()
	isOpen := l.open[uri]
	delete(l.open, uri)
	l.mu.Unlock()
	if !isOpen {
		return nil
	}
	return l.notify(ctx, "textDocument/didClose", map[string]any{"textDocument": textDocument{URI: uri}})
}
