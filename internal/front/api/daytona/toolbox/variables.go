package toolbox

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// maxVariables bounds the variables that clients set for a sandbox, in bytes.
const maxVariables = 64 << 10

var variablePattern = pattern.New(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)

// variableSets have the environment variables that clients set for all programs of a sandbox that
// start later. They are in memory only, and end with the processes of the sandbox. All methods may
// be called concurrently.
type variableSets struct {
	mu  sync.Mutex
	all map[sandpit.ID]*variables
}

// variables are those of one running sandbox.
type variables struct {
	mu     sync.Mutex
	values map[string]string
}

// wrapGuest returns the guest of a sandbox with its variables. The guests that it returns for the
// same running sandbox are equal.
func (v *variableSets) wrapGuest(id sandpit.ID, guest sandpit.Guest) variableGuest {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = make(map[sandpit.ID]*variables)
	}
	set := v.all[id]
	if set == nil {
		set = &variables{}
		v.all[id] = set
	}
	return variableGuest{guest, set}
}

// forget removes the variables of a sandbox whose processes have ended.
func (v *variableSets) forget(id sandpit.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, id)
}

// variableGuest is a guest whose programs have variables.
type variableGuest struct {
	sandpit.Guest

	set *variables
}

// Unwrap returns the guest, for its abilities.
func (g variableGuest) Unwrap() any { return g.Guest }

// Start implements sandpit.Processes. Variables of the command take precedence.
func (g variableGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	cmd.Env = g.set.mergeInto(cmd.Env)
	return g.Guest.Start(ctx, cmd)
}

// mergeInto returns env with the variables that it does not have.
func (v *variables) mergeInto(env map[string]string) map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.values) == 0 {
		return env
	}
	all := maps.Clone(v.values)
	maps.Copy(all, env)
	return all
}

// variablesRequest is the body of a change of variables. Unset are removed before Set is applied.
type variablesRequest struct {
	Set              map[string]string `json:"set"`
	Unset            []string          `json:"unset"`
	UnsetValuePrefix string            `json:"unsetValuePrefix"`
}

// updateEnv changes the variables of programs that start later.
func updateEnv(ctx context.Context, c *call) error {
	var req variablesRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	for name, value := range req.Set {
		if !variablePattern().MatchString(name) || strings.ContainsRune(value, 0) {
			return sandpit.Errorf(sandpit.Invalid, "set %.100q: want the name of a variable, and a value without NUL bytes", name)
		}
	}
	if err := c.checkRemovable(ctx, req); err != nil {
		return err
	}
	if err := c.server.variables.wrapGuest(c.id, c.sandbox.Guest()).set.change(req); err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, map[string]string{"message": "the environment was updated"})
}

// checkRemovable refuses to remove variables of the image, or with which the sandbox was created:
// a guest can only add some.
func (c *call) checkRemovable(ctx context.Context, req variablesRequest) error {
	if len(req.Unset) == 0 && req.UnsetValuePrefix == "" {
		return nil
	}
	w, err := workspace.New(c.sandbox.Guest(), workspace.Options{Dir: "/", Timeout: programTimeout, MaxOutput: maxProgramOutput})
	if err != nil {
		return err
	}
	result, err := w.Run(ctx, sandpit.Command{Args: []string{"cat", "/proc/self/environ"}})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.Errorf(sandpit.Unsupported, "read the environment: the sandbox has no program cat")
	}
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(result.Stdout, "\x00") {
		name, value, found := strings.Cut(line, "=")
		if _, replaced := req.Set[name]; found && !replaced && req.removes(name, value) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "unset %.100q: the variable is part of the image or of the sandbox", name),
				"set it to an empty value, or unset it in each command")
		}
	}
	return nil
}

// removes reports whether a request removes a variable.
func (r variablesRequest) removes(name, value string) bool {
	if slices.Contains(r.Unset, name) {
		return true
	}
	return r.UnsetValuePrefix != "" && strings.HasPrefix(value, r.UnsetValuePrefix)
}

// change removes and sets variables. Exhausted: they would be too large; nothing was changed.
func (v *variables) change(req variablesRequest) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := make(map[string]string)
	for name, value := range v.values {
		if !req.removes(name, value) {
			changed[name] = value
		}
	}
	maps.Copy(changed, req.Set)
	size := 0
	for name, value := range changed {
		size += len(name) + len(value)
	}
	if size > maxVariables {
		return sandpit.Errorf(sandpit.Exhausted, "the variables have %d bytes, want at most %d", size, maxVariables)
	}
	v.values = changed
	return nil
}
