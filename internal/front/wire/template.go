package wire

import "github.com/sandpit-dev/sandpit"

// ContentTypeContext is that of the files of a build.
const ContentTypeContext = "application/x-tar"

// NewTemplate asks for a build of a template.
type NewTemplate struct {
	Name      string            `json:"name" minLength:"1" maxLength:"63" doc:"What it is called; it is made if there is none of this name."`
	Tags      []string          `json:"tags,omitempty" maxItems:"100" doc:"What the build is called when it is ready. Default: default."`
	Resources sandpit.Resources `json:"resources,omitzero" doc:"Limits of its sandboxes, where the recipe has none."`
}

// MadeTemplate is a template with a build of it.
type MadeTemplate struct {
	Template sandpit.Template      `json:"template"`
	Build    sandpit.TemplateBuild `json:"build"`
}

// StartBuild says what a build does.
type StartBuild struct {
	Recipe sandpit.Recipe `json:"recipe" doc:"What is done."`
	// Secrets and Login are kept in memory, and never told.
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Values of secrets that steps name. They are kept in memory, and never told."`
	Login   Login             `json:"login,omitzero" writeOnly:"true" doc:"For the registry of the base. It is kept in memory, and never told."`
	Fresh   bool              `json:"fresh,omitempty" doc:"Do every step again, also one that was done before."`
}

// Login is for a registry.
type Login struct {
	User     string `json:"user,omitempty" maxLength:"1000"`
	Password string `json:"password,omitempty" maxLength:"65536"`
}

// Builtin is a template that is part of the program, and is built when it is first requested.
type Builtin struct {
	Name     string              `json:"name"`
	Status   sandpit.BuildStatus `json:"status" doc:"waiting: nobody has requested it yet."`
	Progress string              `json:"progress,omitempty" doc:"What its build does now."`
	Reason   string              `json:"reason,omitempty" doc:"Why its build failed; for administrators."`
}

// ChangeTemplate changes a template.
type ChangeTemplate struct {
	Public bool `json:"public" doc:"Whether sandboxes of every owner can be made of it."`
}

// Tags are names of builds.
type Tags struct {
	Tags []string `json:"tags" minItems:"1" maxItems:"100" doc:"What the build is called from now on."`
}
