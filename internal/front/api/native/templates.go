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

// Contexts store the files that builds copy.
type Contexts interface {
	// Put reads an untrusted tar stream and replaces the files of a build.
	//
	// Invalid: not a tar stream. Conflict: another one is being read for the build. Exhausted:
	// it is too large, or the files of the owner's waiting builds are.
	Put(ctx context.Context, owner string, id sandpit.BuildID, from io.Reader) error
	// Take returns the directory of a build, or "", and a function that removes it.
	//
	// Conflict: it is being filled.
	Take(id sandpit.BuildID) (dir string, release func(), err error)
}

type newTemplateIn struct {
	Body wire.NewTemplate
}

type createdTemplateOut struct {
	Body wire.MadeTemplate
}

// TemplateIn names a template.
type TemplateIn struct {
	Template string `path:"template" maxLength:"200" doc:"The template: NAME, OWNER/NAME or an ID, each with an optional tag."`
	Owner    string `query:"owner" maxLength:"200" doc:"The owner that the request acts for; only administrators may name another owner. Default: the client's own."`
}

type templateOut struct {
	Body sandpit.Template
}

type templatesIn struct {
	PageIn
	OwnerIn

	Public bool `query:"public" doc:"Include the public templates of other owners."`
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
	Build sandpit.BuildID `path:"build" maxLength:"40" doc:"ID of the build."`
	Owner string          `query:"owner" maxLength:"200" doc:"The owner; only administrators may name another owner. Default: the client's own."`
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

	After int64 `query:"after" minimum:"0" doc:"The number of the last known entry."`
	Limit int   `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
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

// addOperations adds the operations on templates.
func (h *templateHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodPost, pathTemplates, "createTemplate", "Create a build of a template")
	op.DefaultStatus = http.StatusAccepted
	op.Description = "The template is created if it does not exist. The build waits for its files, if it copies any, and for startBuild."
	addOperation(r, op, h.createTemplate)
	addOperation(r, newOperation(http.MethodGet, pathTemplates, "listTemplates", "List templates"), h.listTemplates)
	addOperation(r, newOperation(http.MethodGet, pathTemplate, "getTemplate", "Get a template"), func(ctx context.Context, in *TemplateIn) (*templateOut, error) {
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
		// An administrator acting for another owner does not share the bare name: that owner
		// could replace the template later.
		p, err := api.PrincipalOf(ctx)
		if err != nil {
			return nil, err
		}
		t, err := h.manager.Templates().SetPublic(ctx, owner, in.Template, in.Body.Public, p.Admin && owner == p.Owner)
		return &templateOut{t}, err
	})
	op = newOperation(http.MethodDelete, pathTemplate, "deleteTemplate", "Delete a template")
	op.Description = "Sandboxes that were created from it keep running."
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

// registerBuiltins adds the operation on built-in templates.
func (h *templateHandlers) registerBuiltins(r *registrar) {
	op := newOperation(http.MethodPost, pathBuiltin, "prepareBuiltin", "Build a built-in template, unless it is built")
	op.Description = "Responds at once; repeat the request to get the progress. All owners share the template, and E2B clients request it by its name."
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
	op := newOperation(http.MethodPost, pathTemplate+"/tags", "tagTemplate", "Add tags to a build of a template")
	addOperation(r, op, func(ctx context.Context, in *tagsIn) (*templateOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		t, err := h.manager.Templates().Tag(ctx, owner, in.Template, in.Body.Tags)
		return &templateOut{t}, err
	})
	op = newOperation(http.MethodDelete, pathTemplate+"/tags/{tag}", "untagTemplate", "Remove a tag from a template")
	op.Description = "A build without tags is deleted some time later."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *tagIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Templates().Untag(ctx, owner, in.Template, []string{in.Tag})
	})
}

// addOperations adds the operations on builds.
func (h *buildHandlers) addOperations(r *registrar) {
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
	op = newOperation(http.MethodPost, pathBuild, "startBuild", "Start a build")
	op.DefaultStatus = http.StatusAccepted
	op.Description = "The build runs in the background; see getBuild and getBuildLog."
	addOperation(r, op, h.startBuild)
	addOperation(r, newOperation(http.MethodGet, pathBuild, "getBuild", "Get a build"), func(ctx context.Context, in *BuildIn) (*buildOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use templates of others")
		if err != nil {
			return nil, err
		}
		b, err := h.manager.Builds().Get(ctx, owner, in.Build)
		return &buildOut{b}, err
	})
	op = newOperation(http.MethodGet, pathBuild+"/log", "getBuildLog", "Read the log of a build")
	op.Description = "Works while the build runs. An empty page of a build whose status is ready or failed is the end."
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

func (h *templateHandlers) createTemplate(ctx context.Context, in *newTemplateIn) (*createdTemplateOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	t, b, err := h.manager.Templates().Create(ctx, manager.TemplateRequest{
		Owner: p.Owner, Name: in.Body.Name, Tags: in.Body.Tags, Resources: in.Body.Resources,
	})
	return &createdTemplateOut{wire.MadeTemplate{Template: t, Build: b}}, err
}

func (h *templateHandlers) listTemplates(ctx context.Context, in *templatesIn) (*templatesOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list templates of others")
	if err != nil {
		return nil, err
	}
	after, err := parseCursor[sandpit.TemplateID](in.Cursor)
	if err != nil {
		return nil, err
	}
	f := store.TemplateFilter{
		Owner: owner, All: all, Public: in.Public, After: after, Limit: in.Limit + 1,
	}
	list, err := h.manager.Templates().List(ctx, f)
	if err != nil {
		return nil, err
	}
	return &templatesOut{toPage(list, in.Limit, func(t sandpit.Template) string { return string(t.ID) })}, nil
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
	until func(time.Time) error // sets the deadline of reading the body
}

// filesTimeout is how long the files of a build may take to arrive.
const filesTimeout = time.Hour

// Resolve implements huma.Resolver. The body is too large to be held in memory.
func (i *contextIn) Resolve(hc huma.Context) []error {
	i.body, i.until = hc.BodyReader(), hc.SetReadDeadline
	return nil
}

// registerFiles adds the upload of files.
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
			return nil, &problemError{Problem: api.ProblemOf(ctx, err)}
		}
		return nil, nil //nolint:nilnil // the response has no body
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
		return sandpit.Errorf(sandpit.Conflict, "build %s has been started already", b.ID)
	case h.contexts == nil:
		return sandpit.Errorf(sandpit.Unsupported, "this server cannot build templates")
	}
	_ = in.until(time.Now().Add(filesTimeout)) // connections without deadlines need none
	defer func() { _ = in.until(time.Time{}) }()
	return h.contexts.Put(ctx, owner, b.ID, in.body)
}
