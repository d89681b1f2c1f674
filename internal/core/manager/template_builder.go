package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// TemplateBuilder builds the images of templates. The provider Options.BuilderProvider finds them
// under "template:" and the ID of the build.
type TemplateBuilder interface {
	// PrepareTemplate fetches the base of a recipe, as far as that does not need the job's
	// Create, and keeps it until release is called. It may wait long.
	//
	// Errors are those of Images.PrepareImage.
	PrepareTemplate(ctx context.Context, j TemplateJob) (release func(), err error)
	// BuildTemplate carries out a recipe. After an error no image of it remains.
	//
	// Its errors are shown to the client. An error that a step has caused is a StepError.
	BuildTemplate(ctx context.Context, j TemplateJob) (size int64, err error)
	// RemoveTemplate removes the image of a build. A missing image is not an error.
	RemoveTemplate(ctx context.Context, id sandpit.BuildID) error
}

// TemplateJob is one build for a TemplateBuilder.
type TemplateJob struct {
	Build  sandpit.BuildID
	Recipe sandpit.Recipe
	// Dir is the directory that steps copy files from. Default: none.
	Dir string
	// Secrets are the values of the secrets that steps name.
	Secrets map[string]string
	// Fresh repeats every step.
	Fresh bool
	// Login is the login for the base's registry. Default: the configuration's.
	Login RegistryLogin
	// Owner owns the build, and what it fetches and creates.
	Owner string
	// Trusted reports whether an administrator, the configuration, or the manager (for a build
	// that the owner may use) names Recipe.From: they may use every image.
	Trusted bool
	// Create creates a sandbox for a step.
	Create func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error)
	// Output is called with the output of steps.
	Output func(p []byte)
	// Begin is called when a step begins.
	Begin func(number, total int, step string)
	// Progress is called every few seconds during work before the steps, such as a download.
	Progress func(text string)
}

// RegistryLogin is kept in memory only, for the duration of a build.
type RegistryLogin struct{ User, Password string }

// StepError is an error that one step of a recipe has caused.
type StepError struct {
	// Step is the step as in the recipe.
	Step string
	Err  error
}

// Error implements error.
func (e *StepError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }
