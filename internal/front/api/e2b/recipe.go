package e2b

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// newBuild is a request to start a build.
type newBuild struct {
	Image    string    `json:"fromImage"`
	Template string    `json:"fromTemplate"`
	Login    *login    `json:"fromImageRegistry"`
	Force    bool      `json:"force"`
	Steps    []newStep `json:"steps"`
	Start    string    `json:"startCmd"`
	Ready    string    `json:"readyCmd"`
}

type newStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Hash  string   `json:"filesHash"`
	Force bool     `json:"force"`
}

// login is a login for a registry.
type login struct {
	Type     string `json:"type"`
	User     string `json:"username"`
	Password string `json:"password"`
	Google   string `json:"serviceAccountJson"`
}

// argument returns one of the step's arguments, or "" if there are fewer.
func (s newStep) argument(i int) string {
	if i < len(s.Args) {
		return s.Args[i]
	}
	return ""
}

// labelSteps is the label with the client's step, from 1, that each step of a recipe belongs
// to; 0 for steps before the client's.
const labelSteps = "sandpit.e2b.steps"

// readyTimeout is how many seconds the program of a template may take to be ready.
const readyTimeout = 600

// baseImages is the prefix of E2B's own base images. Their registry is not for sandpit to use.
const baseImages = "e2bdev/"

// recipe is a recipe while the client's steps are converted.
type recipe struct {
	sandpit.Recipe

	// files are the files that steps copy; nil while a build is planned.
	files   *uploads.Files
	uploads *uploads.Store
	owner   string
	user    string // of the steps so far
	belongs []string
	step    int
	fresh   bool // the following steps do not use the cache
}

// recipeReader converts what clients want to have built to recipes.
type recipeReader struct {
	resolver *templateResolver
	uploads  *uploads.Store
	image    sandpit.Image // the default image
	internet bool          // builds may reach the network
}

// maxBuildSteps is the maximum number of a client's steps. The steps that they are converted
// to have a limit of their own.
const maxBuildSteps = 1000

// planRecipe converts a request without unpacking files, which is done during the build.
// Invalid: it can never be built. NotFound: files are missing.
func (b recipeReader) planRecipe(client api.Principal, in newBuild, base base) (sandpit.Recipe, error) {
	if len(in.Steps) > maxBuildSteps {
		return sandpit.Recipe{}, sandpit.Errorf(sandpit.Invalid, "%d steps, want at most %d", len(in.Steps), maxBuildSteps)
	}
	return b.readRecipe(context.Background(), client, in, base, nil)
}

// readRecipe converts a request. It unpacks the files of steps, unless files is nil.
func (b recipeReader) readRecipe(ctx context.Context, client api.Principal, in newBuild, base base, files *uploads.Files) (sandpit.Recipe, error) {
	r := &recipe{files: files, uploads: b.uploads, owner: client.Owner, user: accountName}
	r.From = base.image
	// Steps may reach the network if sandboxes may.
	r.Build.Network.Online = b.internet
	if base.plain {
		r.appendStep(sandpit.RecipeStep{Run: sandpit.ShellArgs(createUserScript), RunUser: "root"})
		r.appendStep(sandpit.RecipeStep{User: accountName})
		r.appendStep(sandpit.RecipeStep{WorkDir: accountHome})
	}
	for i, step := range in.Steps {
		r.step = i + 1
		if err := r.addStep(ctx, step); err != nil {
			return r.Recipe, fmt.Errorf("step %d: %w", r.step, err)
		}
	}
	r.Start = in.Start
	if in.Ready != "" {
		r.Ready = sandpit.Ready{Command: in.Ready, Timeout: readyTimeout}
		if r.Start == "" {
			r.Start = "true" // only the ready check is wanted
		}
	}
	r.Labels = map[string]string{labelSteps: strings.Join(r.belongs, ",")}
	return r.Recipe, nil
}

// accountHome is the home directory of the account, in which steps start.
const accountHome = "/home/" + accountName

// createUserScript creates the account of E2B's images.
const createUserScript = `id -u ` + accountName + ` >/dev/null 2>&1 || useradd -m -u 1000 -s /bin/bash ` + accountName + ` 2>/dev/null || useradd -m -s /bin/bash ` + accountName +
	` 2>/dev/null || adduser -D ` + accountName + ` || exit 1; mkdir -p ` + accountHome + ` && chown ` + accountName + ` ` + accountHome

// base is what a build starts from.
type base struct {
	image sandpit.Image
	// plain says that it is an image, which may lack what E2B's clients expect.
	plain bool
	// configured says that the configuration names it, not the client.
	configured bool
}

// findBase returns what a build starts from.
func (b recipeReader) findBase(ctx context.Context, client api.Principal, in newBuild) (base, error) {
	switch {
	case (in.Image == "") == (in.Template == ""):
		return base{}, sandpit.Errorf(sandpit.Invalid, "want one of fromImage and fromTemplate")
	case strings.HasPrefix(in.Image, baseImages):
		in.Template = baseTemplate
	case in.Image != "":
		if image.IsPath(in.Image) || strings.Contains(in.Image, "://") || strings.HasPrefix(in.Image, sandpit.TemplatePrefix) {
			return base{}, sandpit.Errorf(sandpit.Invalid, "fromImage %.100q: want an image of a registry", in.Image)
		}
		return base{image: sandpit.Image(in.Image), plain: true}, nil
	}
	o, err := b.resolver.resolveName(ctx, client, in.Template)
	if err == nil {
		o, err = b.resolver.awaitBuiltin(ctx, client, o)
	}
	switch {
	case sandpit.CodeOf(err) == sandpit.NotFound: // the build fails, and reports the step
		return base{image: sandpit.Image(sandpit.TemplatePrefix + templateRef(client, in.Template))}, nil
	case err != nil:
		return base{}, err
	case o.saved != nil:
		return base{}, sandpit.Errorf(sandpit.Invalid, "fromTemplate %.100q: a snapshot cannot be the base of a template", in.Template)
	case o.template != "":
		return base{image: sandpit.Image(sandpit.TemplatePrefix + o.template)}, nil
	case o.image == "":
		o.image = b.image
	}
	return base{image: o.image, plain: !isTemplate(o.image), configured: true}, nil
}

func isTemplate(i sandpit.Image) bool {
	_, ok := i.Template()
	return ok
}

// toRegistryLogin converts the login.
func (l *login) toRegistryLogin() (manager.RegistryLogin, error) {
	switch {
	case l == nil:
		return manager.RegistryLogin{}, nil
	case l.Type == "registry":
		return manager.RegistryLogin{User: l.User, Password: l.Password}, nil
	case l.Type == "gcp":
		return manager.RegistryLogin{User: "_json_key", Password: l.Google}, nil
	}
	return manager.RegistryLogin{}, sandpit.Errorf(sandpit.Unsupported, "fromImageRegistry: unknown type %.40q; want registry or gcp", l.Type)
}

func (r *recipe) appendStep(s sandpit.RecipeStep) {
	s.Fresh = r.fresh
	r.Steps, r.belongs = append(r.Steps, s), append(r.belongs, strconv.Itoa(r.step))
}

// bashArgs returns the arguments that run a command as E2B does.
func bashArgs(command string) []string { return []string{"/bin/bash", "-c", command} }

// addStep converts one step of the client and adds the result.
func (r *recipe) addStep(ctx context.Context, s newStep) error {
	if len(s.Args) == 0 || s.Args[0] == "" {
		return sandpit.Errorf(sandpit.Invalid, "%.20s: argument is missing", s.Type)
	}
	r.fresh = r.fresh || s.Force
	switch s.Type {
	case "RUN":
		r.appendStep(sandpit.RecipeStep{Run: bashArgs(s.argument(0)), RunUser: s.argument(1)})
	case "ENV":
		if len(s.Args)%2 != 0 {
			return sandpit.Errorf(sandpit.Invalid, "ENV: want names and values")
		}
		env := make(map[string]string, len(s.Args)/2)
		for i := 0; i < len(s.Args); i += 2 {
			env[s.Args[i]] = s.Args[i+1]
		}
		r.appendStep(sandpit.RecipeStep{Env: env})
	case "WORKDIR":
		r.appendStep(sandpit.RecipeStep{Run: append(sandpit.ShellArgs(createDirScript), s.argument(0), r.user), RunUser: "root"})
		r.appendStep(sandpit.RecipeStep{WorkDir: s.argument(0)})
	case "USER":
		// A missing user fails here, not in a sandbox.
		r.appendStep(sandpit.RecipeStep{Run: bashArgs("whoami"), RunUser: s.argument(0)})
		r.appendStep(sandpit.RecipeStep{User: s.argument(0)})
		r.user = s.argument(0)
	case "COPY":
		return r.copyFiles(ctx, s)
	default:
		return sandpit.Errorf(sandpit.Unsupported, "unknown step %.40q; want COPY, ENV, RUN, USER or WORKDIR", s.Type)
	}
	return nil
}

// createDirScript creates a directory that a user may write to, unless it exists.
const createDirScript = `test -d "$0" || { mkdir -p -- "$0" && chown -- "$1" "$0"; }`

// copyFiles converts a step that copies uploaded files.
func (r *recipe) copyFiles(ctx context.Context, s newStep) error {
	from, to, owner, mode := s.argument(0), s.argument(1), s.argument(2), s.argument(3)
	if !uploads.IsHash(s.Hash) {
		return sandpit.Errorf(sandpit.Invalid, "COPY: filesHash is missing")
	}
	c := &sandpit.RecipeCopy{To: to}
	if mode != "" {
		var err error
		if c.Mode, err = strconv.ParseInt(mode, 8, 64); err != nil || c.Mode < 0 || c.Mode > 0o7777 {
			return sandpit.Errorf(sandpit.Invalid, "COPY: mode %.20q: want an octal number", mode)
		}
	}
	if r.files == nil {
		if err := r.uploads.CheckArchive(uploads.Name{Owner: r.owner, Hash: s.Hash}); err != nil {
			return err
		}
		c.From = []string{s.Hash}
		r.appendStep(sandpit.RecipeStep{Copy: c})
		return nil
	}
	dir, err := r.files.UnpackOnce(ctx, s.Hash)
	if err != nil {
		return err
	}
	found, err := globFiles(dir, from)
	if err != nil {
		return err
	}
	for _, one := range found {
		c.From = append(c.From, path.Join(s.Hash, one))
	}
	if strings.ContainsAny(from, "*?[") && !strings.HasSuffix(to, "/") {
		c.To += "/"
	}
	if owner == "" {
		owner = r.user
	}
	targets := []string{to}
	if intoDir := len(found) > 1 || strings.HasSuffix(c.To, "/"); intoDir || isDir(dir, found[0]) {
		if targets, err = copiedPaths(dir, to, found); err != nil {
			return err
		}
		r.appendStep(sandpit.RecipeStep{Run: append(sandpit.ShellArgs(createDirScript), to, owner), RunUser: "root"})
	}
	r.appendStep(sandpit.RecipeStep{Copy: c})
	if owner != "root" && len(targets) > 0 {
		r.appendStep(sandpit.RecipeStep{Run: append([]string{"chown", "-Rh", "--", owner}, targets...), RunUser: "root"})
	}
	return nil
}

func isDir(dir, name string) bool {
	info, err := os.Lstat(filepath.Join(dir, name))
	return err == nil && info.IsDir()
}

// copiedPaths returns the paths in directory to of files that are copied there. A directory is
// copied as its content.
func copiedPaths(dir, to string, files []string) (all []string, err error) {
	for _, name := range files {
		if !isDir(dir, name) {
			all = append(all, path.Join(to, path.Base(name)))
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, path.Join(to, e.Name()))
		}
	}
	return all, nil
}

// globFiles returns the files in a directory that match a pattern.
func globFiles(dir, pattern string) ([]string, error) {
	pattern = path.Clean(strings.TrimLeft(pattern, "/"))
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found, err := fs.Glob(root.FS(), pattern)
	if err != nil || len(found) == 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "COPY: no file matches %.200q", pattern)
	}
	return found, nil
}
