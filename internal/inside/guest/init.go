package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxInit bounds the body of /init.
const maxInit = 1 << 20

// initRequest is the body of /init. Absent fields stay unchanged.
type initRequest struct {
	AccessToken    *string           `json:"accessToken"`
	EnvVars        map[string]string `json:"envVars"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
	ForgetCommands bool              `json:"forgetCommands"` // sandpit's own field
	// Secrets replace all current secrets. The field is sandpit's own.
	Secrets *map[string]string `json:"secrets"`
}

func (g *Guest) serveInit(w http.ResponseWriter, r *http.Request) {
	var req initRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInit)).Decode(&req); err != nil {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("body: %v", err))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settings.token != "" && g.settings.token != r.Header.Get(TokenHeader) {
		writeError(w, http.StatusUnauthorized, "another call of /init has set a key")
		return
	}
	next, err := g.settings.applyInit(req, g.accounts)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := next.makeWorkDir(g.accounts); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	g.settings = next
	if err := g.writeMarkers(req.EnvVars); err != nil {
		// Not fatal: the files are a convenience, and not every image lets its user write there.
		_, _ = fmt.Fprintln(os.Stderr, "guest: write E2B marker files:", err)
	}
	if req.ForgetCommands {
		g.processes.commands.forgetAll()
	}
	w.WriteHeader(http.StatusNoContent)
}

// e2bMarkerDir is the directory in which E2B's guest writes the files "." + the name of a variable.
const e2bMarkerDir = "/run/e2b"

// writeMarkers writes the variables into the files in which E2B's programs look for them.
func (g *Guest) writeMarkers(env map[string]string) error {
	for _, name := range []string{"E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"} {
		value, given := env[name]
		if !given || g.markerDir == "" {
			continue
		}
		if err := os.MkdirAll(g.markerDir, 0o755); err != nil {
			return err
		}
		file := filepath.Join(g.markerDir, "."+name)
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be a link that a program made
			return err
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil { //nolint:gosec // all users read it
			return err
		}
	}
	return nil
}

// applyInit returns the settings with the changes of req.
func (s settings) applyInit(req initRequest, a *accounts) (settings, error) {
	if err := checkEnv(req.EnvVars); err != nil {
		return s, err
	}
	env := maps.Clone(s.env)
	if env == nil {
		env = make(map[string]string)
	}
	maps.Copy(env, req.EnvVars)
	s.env = env
	if req.Secrets != nil {
		if err := checkEnv(*req.Secrets); err != nil {
			return s, err
		}
		s.secrets = *req.Secrets
	}
	if req.AccessToken != nil && *req.AccessToken != "" {
		s.token = *req.AccessToken
	}
	if req.DefaultUser != nil {
		if _, err := a.lookupUser(*req.DefaultUser); err != nil {
			return s, err
		}
		s.user = *req.DefaultUser
	}
	if req.DefaultWorkdir != nil {
		if *req.DefaultWorkdir != "" && !path.IsAbs(*req.DefaultWorkdir) {
			return s, fmt.Errorf("default working directory %q is not absolute", *req.DefaultWorkdir)
		}
		s.workDir = *req.DefaultWorkdir
	}
	return s, nil
}

// makeWorkDir creates the default working directory for the default user if it is missing.
func (s settings) makeWorkDir(a *accounts) error {
	if s.workDir == "" || isDirectory(s.workDir) {
		return nil
	}
	u, err := a.lookupUser(s.user)
	if err != nil {
		return err
	}
	p, err := resolveTarget(nil, u, s.workDir, true)
	if err != nil {
		return err
	}
	defer p.closeRoot()
	return makeDirs(p.root, p.rel, u)
}

func (g *Guest) serveEnvs(w http.ResponseWriter, _ *http.Request) {
	env := g.currentSettings().env
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, http.StatusOK, env)
}

// forPrograms returns the environment that processes receive.
func (s settings) forPrograms() map[string]string {
	env := make(map[string]string, len(s.env)+len(s.secrets))
	maps.Copy(env, s.env)
	maps.Copy(env, s.secrets)
	return env
}

// checkEnv refuses what no program could be given.
func checkEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("environment variable %q: not a name and value", name)
		}
	}
	return nil
}
