package wire

import "github.com/sandpit-dev/sandpit"

// ContentTypeContext is the media type of the files of a build.
const ContentTypeContext = "application/x-tar"

// NewTemplate is a request for a build of a template.
type NewTemplate struct {
	Name      string            `json:"name" minLength:"1" maxLength:"63" doc:"Name of the template, which is created if it does not exist."`
	Tags      []string          `json:"tags,omitempty" maxItems:"100" doc:"Tags of the build once it is ready. Default: default."`
	Resources sandpit.Resources `json:"resources,omitzero" doc:"Limits of sandboxes of the build, where the recipe has none."`
}

// MadeTemplate is a template with a build of it.
type MadeTemplate struct {
	Template sandpit.Template      `json:"template"`
	Build    sandpit.TemplateBuild `json:"build"`
}

// StartBuild is a request to start a build.
type StartBuild struct {
	Recipe  sandpit.Recipe    `json:"recipe" doc:"The recipe of the build."`
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Values of secrets that steps name. The server keeps them in memory and never returns them."`
	Login   Login             `json:"login,omitzero" writeOnly:"true" doc:"Login for the registry of the base image. The server keeps it in memory and never returns it."`
	Fresh   bool              `json:"fresh,omitempty" doc:"Run every step again, even if the cache has its result."`
}

// Login is a login for a registry.
type Login struct {
	User     string `json:"user,omitempty" maxLength:"1000"`
	Password string `json:"password,omitempty" maxLength:"65536"`
}

// ChangeTemplate is a request to change a template.
type ChangeTemplate struct {
	Public bool `json:"public" doc:"Whether all owners can create sandboxes from the template."`
}

// Tags is a request to add tags to a build.
type Tags struct {
	Tags []string `json:"tags" minItems:"1" maxItems:"100" doc:"Tags that name the build from now on."`
}
