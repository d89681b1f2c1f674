package config

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// E2B is the [e2b] section: what clients of E2B's API find here.
type E2B struct {
	// Templates maps names of their templates to images, unless an owner or an administrator has a
	// template of that name.
	Templates map[string]sandpit.Image
	// Internet lets their sandboxes reach the network if they request it, which they do by
	// default.
	Internet bool
	// Public makes the ports of their sandboxes public, unless their clients say otherwise.
	Public bool
}

// defaultE2B returns the default section.
func defaultE2B() E2B { return E2B{Internet: true, Public: true} }

func e2bSettings() []setting {
	return []setting{
		defineSetting(KeyE2BTemplates, func(c *Config) *map[string]sandpit.Image { return &c.E2B.Templates }, setTemplates,
			"The images of templates of E2B's clients: `{ base = \"debian:12\" }`. The variable: `base=debian:12 python=python:3.12`. "+
				"In an image that has a user called `user`, programs run as that user. An owner's own template of that name, and one that an administrator has "+
				"published, take precedence.").describedBy("the built-in templates; see [from-e2b.md](from-e2b.md#what-a-template-name-means)"),
		defineSetting(KeyE2BInternet, func(c *Config) *bool { return &c.E2B.Internet }, setBool,
			"Whether sandboxes of E2B's clients reach the network if their clients request it, which E2B's SDK does by default. "+
				"Those of Daytona's clients reach it unless their clients forbid it."),
		defineSetting(KeyE2BPublic, func(c *Config) *bool { return &c.E2B.Public }, setBool,
			"Whether ports are public, as with E2B, in sandboxes whose clients do not forbid it. "+
				"Otherwise clients need the traffic token that the server returns with the sandbox."),
	}
}

// templatePattern is what a template may be called.
var templatePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// setTemplates reads a table of images, or words such as base=debian:12.
func setTemplates(field *map[string]sandpit.Image, v any) error {
	return valueTable[sandpit.Image]{
		values: "images", key: "name of a template", example: `{ base = "debian:12" }`, isKey: templatePattern().MatchString, set: setImage,
	}.read(field, v)
}
