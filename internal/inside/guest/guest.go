package guest

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands/commandsconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem/filesystemconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

// Port is the number of the guest on the conduit. Nothing in the sandbox listens on it, so programs there cannot
// reach the guest.
const Port = 49983

// Name is the guest's program. A process whose argv[0] ends in it is a guest.
const Name = "sandpit-guest"

// unauthorized is E2B's error text for a call without a key.
const unauthorized = "unauthorized access, please provide a valid access token or method signing if supported"

// TokenHeader carries the guest's key.
const TokenHeader = "X-Access-Token"

// IsRole reports whether the process with these arguments is a guest. The name of the executable file counts too,
// because a shell's exec -a can set another argv[0].
func IsRole(args []string) bool {
	if filepath.Base(args[0]) == Name {
		return true
	}
	program, err := os.Executable()
	return err == nil && filepath.Base(program) == Name
}

// maxMessage bounds one request of the Connect services.
const maxMessage = 4 << 20

// Guest is the state behind the protocol. All of its handlers may be called
// concurrently.
type Guest struct {
	processes *processes
	accounts  *accounts
	watchers  watchers
	cpu       cpuMeter

	// markerDir is the directory with the files in which E2B's programs find the IDs of their sandbox; "" means that
	// they are not written.
	markerDir string

	mu       sync.RWMutex
	settings settings
}

// settings are what /init sets.
type settings struct {
	token   string
	env     map[string]string
	secrets map[string]string // environment that only processes receive; no call returns it
	user    string            // default user; "" means root
	workDir string            // "" means the user's home
}

// New returns a guest without a key. If it is the machine's first process, it also reaps orphaned processes.
func New() *Guest { return newGuest(os.TempDir()) }

func newGuest(logDir string) *Guest {
	return &Guest{processes: newProcesses(logDir), accounts: newAccounts()}
}

// Close kills every process and waits for the guest's goroutines. No call of its handlers may be in progress.
func (g *Guest) Close() {
	g.watchers.close()
	g.processes.close()
}

// Handler serves the protocol.
func (g *Guest) Handler() http.Handler {
	mux := http.NewServeMux()
	options := connect.WithReadMaxBytes(maxMessage)
	path, handler := processconnect.NewProcessHandler(&processService{g}, options)
	mux.Handle(path, withBatchedEnd(handler))
	path, handler = commandsconnect.NewCommandsHandler(&commandService{g}, options)
	mux.Handle(path, withBatchedEnd(handler))
	mux.Handle(filesystemconnect.NewFilesystemHandler(&filesystemService{g}, options))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(ConfineHeader, "yes")
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /init", g.serveInit)
	mux.HandleFunc("GET /envs", g.serveEnvs)
	mux.HandleFunc("GET /files", g.serveDownload)
	mux.HandleFunc("POST /files", g.serveUpload)
	mux.HandleFunc("POST /files/compose", g.serveCompose)
	mux.HandleFunc("GET /tree", g.servePack)
	mux.HandleFunc("POST /tree", g.serveUnpack)
	mux.HandleFunc("GET /metrics", g.serveMetrics)
	return g.requireKey(g.resolveWorkDir(mux))
}

// requireKey passes on requests with the key. Without the key it passes on only /health, signed file calls and, as
// long as the guest has no key, /init.
func (g *Guest) requireKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkKey(r, g.currentSettings().token); err != nil {
			answerError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkKey(r *http.Request, token string) error {
	isSignable := r.URL.Path == "/files" && (r.Method == http.MethodGet || r.Method == http.MethodPost)
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/health":
		return nil
	case token == "" && r.Method == http.MethodPost && r.URL.Path == "/init":
		return nil
	case token == "":
		return httpErrorf(http.StatusUnauthorized, unauthorized)
	case subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(token)) == 1:
		return nil
	case isSignable:
		return checkSignature(r, token, time.Now())
	}
	return httpErrorf(http.StatusUnauthorized, unauthorized)
}

func (g *Guest) currentSettings() settings {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.settings
}

// writeError writes an error response in the form of the protocol.
func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}
