package client

import (
	"context"
	"io"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TemplateRequest describes a build of a template. The zero value of a field means its default.
type TemplateRequest struct {
	// Name is the name of the template, which is created if it does not exist.
	Name string
	// Tags are the tags that the build gets when it is ready. Default: sandpit.DefaultTag.
	Tags []string
	// Recipe describes the steps.
	Recipe sandpit.Recipe
	// Files writes a tar stream of the files that steps copy. Default: no files.
	Files func(to io.Writer) error
	// Secrets are the values of the secrets that steps name.
	Secrets map[string]string
	// User and Password are the login for the registry of the base image. Default: the server's
	// login.
	User, Password string
	// Fresh runs every step again, also those that are cached.
	Fresh bool
}

// Templates manages the templates of the server.
type Templates struct{ client *Client }

// Build starts a build, which the server continues in the background. See Builds.Wait.
//
// Invalid: the name, a tag or the recipe. NotFound: a secret. Exhausted: the owner's quota is
// reached. Unsupported: the server builds no templates.
func (g Templates) Build(ctx context.Context, r TemplateRequest) (sandpit.Template, sandpit.TemplateBuild, error) {
	var made wire.MadeTemplate
	err := g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("templates"), in: wire.NewTemplate{Name: r.Name, Tags: r.Tags}, out: &made})
	if err == nil && r.Files != nil {
		err = g.client.sendFiles(ctx, made.Build.ID, r.Files)
	}
	if err == nil {
		err = g.client.doCall(ctx, call{
			method: http.MethodPost, path: apiPath("builds", string(made.Build.ID)), out: &made.Build,
			in: wire.StartBuild{Recipe: r.Recipe, Secrets: r.Secrets, Fresh: r.Fresh, Login: wire.Login{User: r.User, Password: r.Password}},
		})
	}
	return made.Template, made.Build, err
}

// sendFiles sends a stream while it is written.
func (c *Client) sendFiles(ctx context.Context, id sandpit.BuildID, files func(io.Writer) error) error {
	out, in := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := files(in)
		in.CloseWithError(err) // nil means the end of the stream
		written <- err
	}()
	err := c.putStream(ctx, apiPath("builds", string(id), "files"), wire.ContentTypeContext, out)
	out.CloseWithError(io.ErrClosedPipe) // stops the writer
	if e := <-written; e != nil && err != nil {
		return e // the cause of the server's error
	}
	return err
}

// putStream sends a stream with PUT.
func (c *Client) putStream(ctx context.Context, p, contentType string, from io.Reader) error {
	r, err := c.newRequest(ctx, http.MethodPut, p, nil, from)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	res, err := c.sendRequest(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// PrepareBuiltin returns the state of a template that is part of the server's program, and starts
// its build unless it was built or is being built. It does not wait for the build.
//
// NotFound: no such template. Unsupported: the server builds no templates.
func (g Templates) PrepareBuiltin(ctx context.Context, name string) (api.Builtin, error) {
	var b api.Builtin
	return b, g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("builtins", name), out: &b})
}

// List returns templates, with public ones of other owners if requested. The owner "" means all
// that the caller may see.
func (g Templates) List(ctx context.Context, owner string, public bool) ([]sandpit.Template, error) {
	query := newOwnerQuery(owner)
	if public {
		query.Set("public", "true")
	}
	return listPages[sandpit.Template](ctx, g.client, apiPath("templates"), query, 0)
}

// Get returns a template by its ID or name. NotFound. PermissionDenied: it belongs to another
// owner and is not public.
func (g Templates) Get(ctx context.Context, ref string) (sandpit.Template, error) {
	return getJSON[sandpit.Template](ctx, g.client, apiPath("templates", ref), nil)
}

// SetPublic sets whether every owner can create sandboxes from a template of the caller. Errors
// are those of Get.
func (g Templates) SetPublic(ctx context.Context, ref string, public bool) error {
	return g.client.doCall(ctx, call{method: http.MethodPatch, path: apiPath("templates", ref), in: wire.ChangeTemplate{Public: public}})
}

// Tag adds tags to the build that a template's name and tag refer to. Errors are those of Get.
func (g Templates) Tag(ctx context.Context, ref string, tags ...string) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("templates", ref, "tags"), in: wire.Tags{Tags: tags}})
}

// Untag removes a tag. Errors are those of Get.
func (g Templates) Untag(ctx context.Context, ref, tag string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("templates", ref, "tags", tag)})
}

// Delete removes a template of the caller; sandboxes created from it keep running. Errors are
// those of Get.
func (g Templates) Delete(ctx context.Context, ref string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("templates", ref), untimed: true})
}
