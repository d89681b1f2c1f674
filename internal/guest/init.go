package guest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxInit bounds the body of /init.
const maxInit = 1 << 20

// initRequest is the body of /init. What is absent stays as it is.
type initRequest struct {
	AccessToken    *string           `json:"accessToken"`
	EnvVars        map[string]string `json:"envVars"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
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
		writeError(w, http.StatusUnauthorized, "the guest was given a key meanwhile")
		return
	}
	next, err := g.settings.with(req)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := next.makeWorkDir(); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	g.settings = next
	w.WriteHeader(http.StatusNoContent)
}

// with returns the settings with what req changes.
func (s settings) with(req initRequest) (settings, error) {
	if err := checkEnv(req.EnvVars); err != nil {
		return s, err
	}
	env := maps.Clone(s.env)
	if env == nil {
		env = make(map[string]string)
	}
	maps.Copy(env, req.EnvVars)
	s.env = env
	if req.AccessToken != nil && *req.AccessToken != "" {
		s.token = *req.AccessToken
	}
	if req.DefaultUser != nil {
		if _, err := lookupUser(*req.DefaultUser); err != nil {
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

// makeWorkDir makes the default working directory, if it is missing, for the
// default user.
func (s settings) makeWorkDir() error {
	if s.workDir == "" {
		return nil
	}
	u, err := lookupUser(s.user)
	if err != nil {
		return err
	}
	return makeDirs(s.workDir, u)
}

// makeDirs makes a directory and those above it that are missing, owned by u.
func makeDirs(dir string, u user) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
		}
		return nil
	}
	if parent := path.Dir(dir); parent != dir {
		if err := makeDirs(parent, u); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	return os.Lchown(dir, u.uid, u.gid)
}

func (g *Guest) serveEnvs(w http.ResponseWriter, _ *http.Request) {
	env := g.current().env
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, http.StatusOK, env)
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
