package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TemplateRequest asks for a build of a template. The zero value of a field means the
// default stated with it.
type TemplateRequest struct {
	// Name is what the template is called; it is made if there is none of this name.
	Name string
	// Tags are what the build is called when it is ready. Default: sandpit.DefaultTag.
	Tags []string
	// Recipe is what is done.
	Recipe sandpit.Recipe
	// Files writes a tar stream of what steps copy. Default: nothing is copied.
	Files func(to io.Writer) error
	// Secrets are values of those that steps name.
	Secrets map[string]string
	// User and Password are for the registry of the base. Default: what the server has.
	User, Password string
	// Fresh does every step again, also one that was done before.
	Fresh bool
}

// Templates manages the templates of the server.
type Templates struct{ client *Client }

// Builds reads builds of templates and their logs.
type Builds struct{ client *Client }

// Build starts a build, which goes on by itself. See WaitBuild.
//
// Invalid: the name, a tag or the recipe. NotFound: a secret. Exhausted: the owner has as
// much as there may be. Unsupported: the server builds no templates.
func (g Templates) Build(ctx context.Context, r TemplateRequest) (sandpit.Template, sandpit.TemplateBuild, error) {
	var made wire.MadeTemplate
	err := g.client.do(ctx, call{method: http.MethodPost, path: path("templates"), in: wire.NewTemplate{Name: r.Name, Tags: r.Tags}, out: &made})
	if err == nil && r.Files != nil {
		err = g.client.sendFiles(ctx, made.Build.ID, r.Files)
	}
	if err == nil {
		err = g.client.do(ctx, call{
			method: http.MethodPost, path: path("builds", string(made.Build.ID)), out: &made.Build,
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
		in.CloseWithError(err) // nil is the end
		written <- err
	}()
	err := c.put(ctx, path("builds", string(id), "files"), wire.ContentTypeContext, out)
	out.CloseWithError(io.ErrClosedPipe) // who writes still is told
	if e := <-written; e != nil && err != nil {
		return e // it is why the server was told less
	}
	return err
}

// put sends a stream.
func (c *Client) put(ctx context.Context, p, contentType string, from io.Reader) error {
	r, err := c.request(ctx, http.MethodPut, p, nil, from)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	res, err := c.send(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Build returns a build of the caller's. NotFound.
func (g Builds) Get(ctx context.Context, id sandpit.BuildID) (sandpit.TemplateBuild, error) {
	return get[sandpit.TemplateBuild](ctx, g.client, path("builds", string(id)), nil)
}

// BuildLog returns what a build has told, from behind the entry with the number after, at
// most 1000 entries. NotFound.
func (g Builds) Log(ctx context.Context, id sandpit.BuildID, after int64) ([]sandpit.BuildLog, error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {"1000"}}
	page, err := get[wire.Page[sandpit.BuildLog]](ctx, g.client, path("builds", string(id), "log"), query)
	return page.Items, err
}

// pollBuild is how often WaitBuild asks.
const pollBuild = 200 * time.Millisecond

// WaitBuild returns a build that has ended, ready or not. Meanwhile hear is called with
// each line of its log.
func (g Builds) Wait(ctx context.Context, id sandpit.BuildID, hear func(sandpit.BuildLog)) (sandpit.TemplateBuild, error) {
	var after int64
	for {
		b, err := g.client.Builds.Get(ctx, id) // before the log, so that nothing is missed
		if err != nil {
			return b, err
		}
		for {
			list, err := g.client.Builds.Log(ctx, id, after)
			if err != nil {
				return b, err
			}
			for _, l := range list {
				hear(l)
				after = l.Seq
			}
			if len(list) == 0 {
				break
			}
		}
		if b.Status.Ended() {
			return b, nil
		}
		select {
		case <-time.After(pollBuild):
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
}

// PrepareBuiltin returns the state of a template that is part of the server's program, and
// has its build begin unless it was built or is being built. It does not wait for the build.
//
// NotFound: there is no such template. Unsupported: the server builds no templates.
func (g Templates) PrepareBuiltin(ctx context.Context, name string) (api.Builtin, error) {
	var b api.Builtin
	return b, g.client.do(ctx, call{method: http.MethodPost, path: path("builtins", name), out: &b})
}

// Templates lists templates, with public ones of others if asked for. The owner "" is
// everybody that can be seen.
func (g Templates) List(ctx context.Context, owner string, public bool) ([]sandpit.Template, error) {
	query := ownerQuery(owner)
	if public {
		query.Set("public", "true")
	}
	return pages[sandpit.Template](ctx, g.client, path("templates"), query, 0)
}

// Template returns a template by its ID or name. NotFound. PermissionDenied: it is
// another's, and not public.
func (g Templates) Get(ctx context.Context, ref string) (sandpit.Template, error) {
	return get[sandpit.Template](ctx, g.client, path("templates", ref), nil)
}

// Builds lists the builds of a template of the caller's without their recipes, the newest
// first, at most 100.
func (g Builds) List(ctx context.Context, ref string) ([]sandpit.TemplateBuild, error) {
	page, err := get[wire.Page[sandpit.TemplateBuild]](ctx, g.client, path("templates", ref, "builds"), nil)
	return page.Items, err
}

// SetTemplatePublic says whether sandboxes of every owner can be made of a template of
// the caller's. Errors are those of Template.
func (g Templates) SetPublic(ctx context.Context, ref string, public bool) error {
	return g.client.do(ctx, call{method: http.MethodPatch, path: path("templates", ref), in: wire.ChangeTemplate{Public: public}})
}

// TagTemplate has tags mean the build that a template's name and tag stand for. Errors are
// those of Template.
func (g Templates) Tag(ctx context.Context, ref string, tags ...string) error {
	return g.client.do(ctx, call{method: http.MethodPost, path: path("templates", ref, "tags"), in: wire.Tags{Tags: tags}})
}

// UntagTemplate takes a tag away. Errors are those of Template.
func (g Templates) Untag(ctx context.Context, ref, tag string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("templates", ref, "tags", tag)})
}

// DeleteTemplate removes a template of the caller's; sandboxes that were made of it go on.
// Errors are those of Template.
func (g Templates) Delete(ctx context.Context, ref string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("templates", ref), untimed: true})
}
