package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// TemplateBuilder makes the images of templates. They are found under
// "template:" and the ID of the build by the provider Options.BuilderProvider.
type TemplateBuilder interface {
	// PrepareTemplate fetches what a recipe starts from, as far as it does not need the
	// job's Create, and holds it until release is called. It may wait long.
	//
	// Errors are those of Images.PrepareImage.
	PrepareTemplate(ctx context.Context, j TemplateJob) (release func(), err error)
	// BuildTemplate carries out a recipe. After an error no image of it is left.
	//
	// Errors are told to whoever builds. One that a step is at fault for is a StepError.
	BuildTemplate(ctx context.Context, j TemplateJob) (size int64, err error)
	// RemoveTemplate lets go of the image of a build. It is no error if there is none.
	RemoveTemplate(ctx context.Context, id sandpit.BuildID) error
}

// TemplateJob is one build for a TemplateBuilder.
type TemplateJob struct {
	Build  sandpit.BuildID
	Recipe sandpit.Recipe
	// Dir is where files are copied from. Default: there are none.
	Dir string
	// Secrets are values of those that steps name.
	Secrets map[string]string
	// Fresh does every step again.
	Fresh bool
	// Login is for the registry of the base. Default: that of the configuration.
	Login RegistryLogin
	// Owner owns the build, and what it fetches and makes.
	Owner string
	// Trusted says that an administrator, the configuration, or the manager (for a build that
	// the owner may use) names Recipe.From: they may use every image.
	Trusted bool
	// Create makes a sandbox in which a step runs.
	Create func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error)
	// Output takes what steps put out.
	Output func(p []byte)
	// Begin hears of each step.
	Begin func(number, total int, step string)
	// Progress hears, every few seconds, what is done before the steps, such as a download.
	Progress func(text string)
}

// RegistryLogin is kept in memory only, and only as long as a build takes.
type RegistryLogin struct{ User, Password string }

// StepError is an error that one step of a recipe is at fault for.
type StepError struct {
	// Step is as people write it.
	Step string
	Err  error
}

// Error implements error.
func (e *StepError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }
