package image

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// reference names an image of a registry.
type reference struct {
	registry   string // for example docker.io, ghcr.io, localhost:5000
	repository string // library/python
	tag        string // "" if there is a digest
	digest     string
	template   string // the name of a template; the other fields are empty then
}

const (
	hub        = "docker.io"
	hubLibrary = "library/"
	defaultTag = "latest"
)

var (
	registryPattern   = pattern.New(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`)
	repositoryPattern = pattern.New(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

const maxRepository = 255

// parseReference parses a name as docker pull does: docker.io, library/ and :latest are the
// defaults.
//
// Invalid: not a reference.
func parseReference(text string) (reference, error) {
	if r, ok, err := parseTemplate(text); ok || err != nil {
		return r, err
	}
	if err := checkRecipeName(text); err != nil {
		return reference{}, err
	}
	rest, digest, hasDigest := strings.Cut(text, "@")
	r := reference{registry: hub, digest: digest, tag: defaultTag}
	if hasDigest {
		if err := checkDigest(digest); err != nil {
			return r, err
		}
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		rest, r.tag = rest[:i], rest[i+1:]
	}
	if first, after, found := strings.Cut(rest, "/"); found && isRegistry(first) {
		r.registry, rest = strings.ToLower(first), after
	}
	if r.registry == "index.docker.io" || r.registry == "registry-1.docker.io" {
		r.registry = hub
	}
	if r.registry == hub && rest != "" && !strings.Contains(rest, "/") {
		rest = hubLibrary + rest
	}
	r.repository = rest
	switch {
	case !registryPattern().MatchString(r.registry):
		return r, errReference("%s is not the name of a registry", quoteName(r.registry))
	case strings.ToLower(rest) != rest:
		return r, errReference("image names have no upper-case letters")
	case len(rest) > maxRepository || !repositoryPattern().MatchString(rest):
		return r, errReference("%s is not the name of an image", quoteName(text))
	case !tagPattern().MatchString(r.tag):
		return r, errReference("%s is not a tag", quoteName(r.tag))
	}
	if hasDigest {
		r.tag = "" // the digest is more specific
	}
	return r, nil
}

// checkRecipeName returns an Invalid error for a name that only recipes of templates and
// "template build" accept. An image of a registry with such a name must be written with its
// registry.
func checkRecipeName(text string) error {
	if name, ok := strings.CutPrefix(text, "builtin:"); ok {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is a recipe, which must be built first", quoteName(text)),
			"sandpit template build "+clipText(text)+"; then use the image template:"+clipText(name))
	}
	if suite, ok := strings.CutPrefix(text, "apt:"); ok {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is a base for templates and not an image", quoteName(text)),
			"write from = \"apt:"+clipText(suite)+"\" into a sandpit.toml, sandpit template build -t NAME, and use the image template:NAME; or: sandpit template build builtin:base")
	}
	return nil
}

// clipText shortens a text for a hint.
func clipText(text string) string {
	const longest = 80
	return text[:min(len(text), longest)]
}

func errReference(format string, args ...any) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, format, args...),
		"use for example python:3.12-slim or ghcr.io/owner/name:tag; the path of a file or directory starts with / or ./")
}

// isRegistry reports whether the first component of a name is a registry: ghcr.io/x, but not
// owner/x.
func isRegistry(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost"
}

// templatePrefix begins the names of templates. It hides docker.io/library/template, which
// must be written with its registry.
const templatePrefix = "template:"

var templatePattern = pattern.New(`^[a-z0-9]+(?:[._-]+[a-z0-9]+)*$`)

// parseTemplate parses the name of a template. ok is false without the prefix of templates.
func parseTemplate(text string) (r reference, ok bool, err error) {
	name, ok := strings.CutPrefix(text, templatePrefix)
	if !ok {
		return r, false, nil
	}
	if len(name) > maxTemplate || !templatePattern().MatchString(name) {
		return r, true, errTemplateName(text)
	}
	return reference{template: name}, true, nil
}

const maxTemplate = 63

func errTemplateName(text string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is not the name of a template", quoteName(text)),
		"use template: and up to 63 lower-case letters and digits, separated by single dots, dashes or underscores")
}

// String returns the complete name, which records use.
func (r reference) String() string {
	if r.template != "" {
		return templatePrefix + r.template
	}
	return r.fullName() + r.tagSuffix()
}

// untaggedName returns the short name without tag or digest.
func (r reference) untaggedName() string { return strings.TrimSuffix(r.shortName(), r.tagSuffix()) }

func (r reference) fullName() string { return r.registry + "/" + r.repository }

func (r reference) tagSuffix() string {
	if r.digest != "" {
		return "@" + r.digest
	}
	return ":" + r.tag
}

// shortName returns the name without defaults.
func (r reference) shortName() string {
	if r.template != "" {
		return r.String()
	}
	name := r.fullName()
	if r.registry != hub {
		return name + r.tagSuffix()
	}
	rest := strings.TrimPrefix(r.repository, hubLibrary)
	first, _, found := strings.Cut(rest, "/")
	if found && (rest != r.repository || isRegistry(first)) { // without the registry it would mean another image
		return name + r.tagSuffix()
	}
	return rest + r.tagSuffix()
}

// apiName returns the digest or tag for the registry's API.
func (r reference) apiName() string {
	if r.digest != "" {
		return r.digest
	}
	return r.tag
}
