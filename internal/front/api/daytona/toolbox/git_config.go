package toolbox

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// configRequest is the body of a change of git's configuration.
type configRequest struct {
	gitPath

	Scope string `json:"scope"`
	Key   string `json:"key"`
	Value string `json:"value"`
	// Name and Email are those of a user.
	Name  string `json:"name"`
	Email string `json:"email"`
}

// configValue is a value of git's configuration. It has none if the key is not set.
type configValue struct {
	Value *string `json:"value,omitempty"`
}

// openConfig returns what to run git in for a scope of its configuration, and git's option for
// the scope.
func (c *call) openConfig(ctx context.Context, scope, p string) (r *repository, option string, err error) {
	switch scope = cmp.Or(scope, "global"); scope {
	case "global", "system":
		return &repository{call: c, dir: "/"}, "--" + scope, nil
	case "local":
		r, err := c.openRepository(ctx, p)
		return r, "--local", err
	}
	return nil, "", sandpit.Errorf(sandpit.Invalid, "scope %.20q: want global, local or system", scope)
}

func (gitHandlers) getGitConfig(ctx context.Context, c *call) error {
	query := c.r.URL.Query()
	if err := checkGitName("key", query.Get("key")); err != nil {
		return err
	}
	r, scope, err := c.openConfig(ctx, query.Get("scope"), query.Get("path"))
	if err != nil {
		return err
	}
	result, err := r.try(ctx, "config", scope, "--null", "--get", query.Get("key"))
	if err != nil {
		return err
	}
	var value configValue
	switch {
	case result.ExitCode == 0:
		text := strings.TrimSuffix(result.Stdout, "\x00")
		value.Value = &text
	case result.ExitCode != 1 || result.Stderr != "": // 1 without a message: the key is not set
		_, err = r.run(ctx, "read the configuration", "config", scope, "--null", "--get", query.Get("key"))
		return err
	}
	return c.writeJSON(http.StatusOK, value)
}

func (gitHandlers) setGitConfig(ctx context.Context, c *call) error {
	var req configRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if err := checkGitName("key", req.Key); err != nil {
		return err
	}
	return c.changeConfig(ctx, req, [2]string{req.Key, req.Value})
}

func (gitHandlers) configureUser(ctx context.Context, c *call) error {
	var req configRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if req.Name == "" || req.Email == "" {
		return sandpit.Errorf(sandpit.Invalid, "name and email are required")
	}
	return c.changeConfig(ctx, req, [2]string{"user.name", req.Name}, [2]string{"user.email", req.Email})
}

// changeConfig sets keys of git's configuration, and responds.
func (c *call) changeConfig(ctx context.Context, req configRequest, pairs ...[2]string) error {
	r, scope, err := c.openConfig(ctx, req.Scope, req.Path)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		if _, err := r.run(ctx, "change the configuration", "config", scope, "--replace-all", "--", pair[0], pair[1]); err != nil {
			return err
		}
	}
	return c.writeEmpty(http.StatusOK)
}

// credentialsRequest is the body of a call that stores credentials.
type credentialsRequest struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Host     string `json:"host"`
	Protocol string `json:"protocol"`
}

// storeCredentials stores credentials in a file of the sandbox, as plain text, for all later
// commands of git. The client asks for exactly this.
func (gitHandlers) storeCredentials(ctx context.Context, c *call) error {
	var req credentialsRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	req.Host, req.Protocol = cmp.Or(req.Host, "github.com"), cmp.Or(req.Protocol, "https")
	switch {
	case req.Username == "" || req.Password == "":
		return sandpit.Errorf(sandpit.Invalid, "username and password are required")
	case strings.ContainsAny(req.Username+req.Password+req.Host+req.Protocol, "\r\n\x00"):
		return sandpit.Errorf(sandpit.Invalid, "store credentials: a value has a line break")
	}
	r := &repository{call: c, dir: "/"}
	if _, err := r.run(ctx, "store credentials", "config", "--global", "credential.helper", "store"); err != nil {
		return err
	}
	text := "protocol=" + req.Protocol + "\nhost=" + req.Host + "\nusername=" + req.Username + "\npassword=" + req.Password + "\n"
	result, err := c.runProgram(ctx, sandpit.Command{Args: []string{"git", "credential-store", "store"}, Stdin: strings.NewReader(text)})
	if err == nil && result.ExitCode != 0 {
		err = toGitError(workspace.GitError("store credentials", result))
	}
	return c.writeDone(err)
}
