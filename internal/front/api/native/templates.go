package native

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	pathTemplates = wire.Prefix + "/templates"
	pathTemplate  = pathTemplates + "/{template}"
	pathBuilds    = wire.Prefix + "/builds"
	pathBuild     = pathBuilds + "/{build}"
	pathBuiltin   = wire.Prefix + "/builtins/{name}"
)

// Contexts keep the files that builds copy.
type Contexts interface {
	// Put reads a tar stream, which is hostile. What a build had before is replaced.
	//
	// Invalid: no such stream. Conflict: another one is being read for the build. Exhausted:
	// it is too large, or the owner's builds that were not started have too much.
	Put(ctx context.Context, owner string, id sandpit.BuildID, from io.Reader) error
	// Take returns the directory of a build, "" if it has none, and what removes it.
	//
	// Conflict: it is being filled.
	Take(id sandpit.BuildID) (dir string, release func(), err error)
}

type newTemplateIn struct {
	Body wire.NewTemplate
}

type madeTemplateOut struct {
	Body wire.MadeTemplate
}

// TemplateIn names a template.
type TemplateIn struct {
	Template string `path:"template" maxLength:"200" doc:"The template: NAME, OWNER/NAME or an ID, each with an optional tag."`
	Owner    string `query:"owner" maxLength:"200" doc:"In whose name; for administrators. Default: the caller's own."`
}

type templateOut struct {
	Body sandpit.Template
}

type templatesIn struct {
	Cursor string `query:"cursor" maxLength:"100" doc:"That of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most so many."`
	Owner  string `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: everybody's, to them."`
	Public bool   `query:"public" doc:"Those of others that are public, too."`
}

type templatesOut struct {
	Body wire.Page[sandpit.Template]
}

type changeTemplateIn struct {
	TemplateIn

	Body wire.ChangeTemplate
}

type tagsIn struct {
	TemplateIn

	Body wire.Tags
}

type tagIn struct {
	TemplateIn

	Tag string `path:"tag" maxLength:"63" doc:"The tag."`
}

// BuildIn names a build.
type BuildIn struct {
	Build sandpit.BuildID `path:"build" maxLength:"40" doc:"The build."`
	Owner string          `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: the caller's own."`
}

type buildOut struct {
	Body sandpit.TemplateBuild
}

type buildsOut struct {
	Body wire.Page[sandpit.TemplateBuild]
}

type startBuildIn struct {
	BuildIn

	Body wire.StartBuild
}

type buildLogIn struct {
	BuildIn

	After int64 `query:"after" minimum:"0" doc:"The number of the last entry that is known."`
	Limit int   `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most so many."`
}

type buildLogOut struct {
	Body wire.Page[sandpit.BuildLog]
}

// templateHandlers serve templates.
type templateHandlers struct {
	manager *manager.Manager
	access  access
}

// buildHandlers serve builds of templates.
type buildHandlers struct {
	manager  *manager.Manager
	contexts Contexts // nil: the server builds no templates
	access   access
}

// register adds the operations on templates.
func (h *templateHandlers) register(r *registrar) {
	op := newOperation(http.MethodPost, pathTemplates, "createTemplate", "Make a build of a template")
	op.DefaultStatus = http.StatusAccepted
	op.Description = "The template is made if there is none of this name. The build waits for its files, if it copies any, and for startBuild."
	addOperation(r, op, h.createTemplate)
	addOperation(r, newOperation(http.MethodGet, pathTemplates, "listTemplates", "List templates"), h.listTemplates)
	addOperation(r, newOperation(http.MethodGet, pathTemplate, "getTemplate", "Look at a template"), func(ctx context.Context, in *TemplateIn) (*templateOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		t, err := h.manager.Templates().Get(ctx, owner, in.Template)
		return &templateOut{t}, err
	})
	op = newOperation(http.MethodPatch, pathTemplate, "changeTemplate", "Change a template")
	op.Description = "Other owners find a public template as OWNER/NAME. When an administrator publishes their own template, the bare name also means it, for owners that have no template of that name."
	addOperation(r, op, func(ctx context.Context, in *changeTemplateIn) (*templateOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		// An administrator who acts for another owner shares nothing: that owner could
		// replace it later.
		p, err := api.PrincipalOf(ctx)
		if err != nil {
			return nil, err
		}
		t, err := h.manager.Templates().SetPublic(ctx, owner, in.Template, in.Body.Public, p.Admin && owner == p.Owner)
		return &templateOut{t}, err
	})
	op = newOperation(http.MethodDelete, pathTemplate, "deleteTemplate", "Delete a template")
	op.Description = "Sandboxes that were made of it go on."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *TemplateIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Templates().Delete(ctx, owner, in.Template)
	})
	h.registerTags(r)
	h.registerBuiltins(r)
}

type builtinIn struct {
	Name string `path:"name" maxLength:"63" doc:"The template, such as base."`
}

type builtinOut struct {
	Body wire.Builtin
}

// builtins registers the templates that are part of the program.
func (h *templateHandlers) registerBuiltins(r *registrar) {
	op := newOperation(http.MethodPost, pathBuiltin, "prepareBuiltin", "Have a built-in template built, unless it was")
	op.Description = "It returns at once; send it again to see how the build is doing. All owners share the template, and E2B's clients request it by its name."
	addOperation(r, op, func(ctx context.Context, in *builtinIn) (*builtinOut, error) {
		p, err := api.PrincipalOf(ctx)
		if err != nil {
			return nil, err
		}
		b, err := h.manager.Builtins().Prepare(ctx, in.Name)
		out := wire.Builtin{Name: in.Name, Status: b.Status, Progress: b.Progress}
		if p.Admin && b.Status == sandpit.BuildFailed {
			out.Reason = b.Reason
		}
		return &builtinOut{out}, err
	})
}

func (h *templateHandlers) registerTags(r *registrar) {
	op := newOperation(http.MethodPost, pathTemplate+"/tags", "tagTemplate", "Call a build of a template by further tags")
	addOperation(r, op, func(ctx context.Context, in *tagsIn) (*templateOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		t, err := h.manager.Templates().Tag(ctx, owner, in.Template, in.Body.Tags)
		return &templateOut{t}, err
	})
	op = newOperation(http.MethodDelete, pathTemplate+"/tags/{tag}", "untagTemplate", "Take a tag away from a template")
	op.Description = "A build without one is removed some time later."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *tagIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Templates().Untag(ctx, owner, in.Template, []string{in.Tag})
	})
}

// builds registers how templates come to be.
func (h *buildHandlers) register(r *registrar) {
	op := newOperation(http.MethodGet, pathTemplate+"/builds", "listBuilds", "List the builds of a template, the newest first")
	op.Description = "At most 100, without their recipes, which getBuild returns."
	addOperation(r, op,
		func(ctx context.Context, in *TemplateIn) (*buildsOut, error) {
			owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
			if err != nil {
				return nil, err
			}
			const most = 100
			list, err := h.manager.Builds().List(ctx, owner, in.Template, most)
			return &buildsOut{wire.Page[sandpit.TemplateBuild]{Items: list}}, err
		})
	h.registerFiles(r)
	op = newOperation(http.MethodPost, pathBuild, "startBuild", "Have a build begin")
	op.DefaultStatus = http.StatusAccepted
	op.Description = "It goes on by itself; see getBuild and getBuildLog."
	addOperation(r, op, h.startBuild)
	addOperation(r, newOperation(http.MethodGet, pathBuild, "getBuild", "Look at a build"), func(ctx context.Context, in *BuildIn) (*buildOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		b, err := h.manager.Builds().Get(ctx, owner, in.Build)
		return &buildOut{b}, err
	})
	op = newOperation(http.MethodGet, pathBuild+"/log", "getBuildLog", "Read what a build tells")
	op.Description = "Also while it goes on: an empty page of one whose status is ready or failed is the end."
	addOperation(r, op, func(ctx context.Context, in *buildLogIn) (*buildLogOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		list, err := h.manager.Builds().Log(ctx, owner, in.Build, in.After, in.Limit)
		if list == nil {
			list = []sandpit.BuildLog{}
		}
		return &buildLogOut{wire.Page[sandpit.BuildLog]{Items: list}}, err
	})
}

func (h *templateHandlers) createTemplate(ctx context.Context, in *newTemplateIn) (*madeTemplateOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	t, b, err := h.manager.Templates().Create(ctx, manager.TemplateRequest{
		Owner: p.Owner, Name: in.Body.Name, Tags: in.Body.Tags, Resources: in.Body.Resources,
	})
	return &madeTemplateOut{wire.MadeTemplate{Template: t, Build: b}}, err
}

func (h *templateHandlers) listTemplates(ctx context.Context, in *templatesIn) (*templatesOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list templates of others")
	if err != nil {
		return nil, err
	}
	f := store.TemplateFilter{
		Owner: owner, All: all, Public: in.Public, After: sandpit.TemplateID(in.Cursor), Limit: in.Limit + 1,
	}
	if in.Cursor != "" && f.After.Validate() != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "cursor %.40q: it is none", in.Cursor)
	}
	list, err := h.manager.Templates().List(ctx, f)
	if err != nil {
		return nil, err
	}
	return &templatesOut{paged(list, in.Limit, func(t sandpit.Template) string { return string(t.ID) })}, nil
}

func (h *buildHandlers) startBuild(ctx context.Context, in *startBuildIn) (*buildOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	if !p.Admin {
		if err := api.AuthorizeImage(p, in.Body.Recipe.From); err != nil {
			return nil, err
		}
	}
	before, err := h.manager.Builds().Get(ctx, p.Owner, in.Build)
	if err != nil {
		return nil, err
	}
	request := manager.BuildRequest{
		Owner: p.Owner, Admin: p.Admin, Build: before.ID, Recipe: in.Body.Recipe, Secrets: in.Body.Secrets, Fresh: in.Body.Fresh,
		Login: manager.RegistryLogin{User: in.Body.Login.User, Password: in.Body.Login.Password},
	}
	if h.contexts != nil && before.Status == sandpit.BuildWaiting {
		if request.Files, request.Release, err = h.contexts.Take(before.ID); err != nil {
			return nil, err
		}
	}
	if err := h.manager.Builds().Start(ctx, request); err != nil {
		return nil, err
	}
	b, err := h.manager.Builds().Get(ctx, p.Owner, in.Build)
	return &buildOut{b}, err
}

type contextIn struct {
	BuildIn

	body  io.Reader
	until func(time.Time) error // sets when the body must have come
}

// contextTime is how long the files of a build may take to come.
const contextTime = time.Hour

// Resolve takes the body as it comes: it is too large to be kept.
func (i *contextIn) Resolve(hc huma.Context) []error {
	i.body, i.until = hc.BodyReader(), hc.SetReadDeadline
	return nil
}

// putContext registers the upload of files.
func (h *buildHandlers) registerFiles(r *registrar) {
	op := newOperation(http.MethodPut, pathBuild+"/files", "putBuildFiles", "Send the files that a build copies")
	op.DefaultStatus = http.StatusNoContent
	op.Description = "Before startBuild. Steps name their paths in the archive."
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		wire.ContentTypeContext: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	op.Responses = map[string]*huma.Response{}
	r.describeFailures(&op)
	huma.Register(r.api, op, func(ctx context.Context, in *contextIn) (*struct{}, error) {
		if err := h.receiveFiles(ctx, in); err != nil {
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		return nil, nil //nolint:nilnil // there is nothing to answer
	})
}

func (h *buildHandlers) receiveFiles(ctx context.Context, in *contextIn) error {
	owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
	if err != nil {
		return err
	}
	b, err := h.manager.Builds().Get(ctx, owner, in.Build)
	switch {
	case err != nil:
		return err
	case b.Status != sandpit.BuildWaiting || b.Recipe.From != "":
		return sandpit.Errorf(sandpit.Conflict, "build %s was started before", b.ID)
	case h.contexts == nil:
		return sandpit.Errorf(sandpit.Unsupported, "templates cannot be built by this server")
	}
	_ = in.until(time.Now().Add(contextTime)) // what cannot have one needs none
	defer func() { _ = in.until(time.Time{}) }()
	return h.contexts.Put(ctx, owner, b.ID, in.body)
}
