package sandpit

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"
)

// TemplateID identifies a template for its whole life.
type TemplateID string

// BuildID identifies one build of a template for its whole life.
type BuildID string

var (
	templateIDPattern   = newPattern(`^tmpl[a-z2-7]{16}$`)
	buildIDPattern      = newPattern(`^bld[a-z2-7]{16}$`)
	templateNamePattern = newPattern(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
)

// NewTemplateID returns a TemplateID with 80 bits of randomness.
func NewTemplateID() TemplateID { return TemplateID("tmpl" + randomName()) }

// NewBuildID returns a BuildID with 80 bits of randomness.
func NewBuildID() BuildID { return BuildID("bld" + randomName()) }

func randomName() string {
	raw := make([]byte, 10)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(raw))
}

// Validate returns an Invalid error unless id has the form NewTemplateID gives it.
func (id TemplateID) Validate() error {
	if !templateIDPattern().MatchString(string(id)) {
		return Errorf(Invalid, "template id %.40q: want \"tmpl\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// Validate returns an Invalid error unless id has the form NewBuildID gives it. Use it on
// every BuildID from outside: they become names of images.
func (id BuildID) Validate() error {
	if !buildIDPattern().MatchString(string(id)) {
		return Errorf(Invalid, "build id %.40q: want \"bld\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// NoBuiltinTemplate returns the NotFound error for a name that no built-in template has. Its hint
// lists the names that exist.
func NoBuiltinTemplate(name string, names []string) error {
	return WithHint(Errorf(NotFound, "no built-in template %.100q", name), "built-in templates: "+strings.Join(names, ", "))
}

// CheckTemplateName returns an Invalid error unless name is a valid name of a template or a
// tag. A name must not look like an ID.
func CheckTemplateName(name string) error {
	if !templateNamePattern().MatchString(name) || templateIDPattern().MatchString(name) || buildIDPattern().MatchString(name) {
		return Errorf(Invalid, "template %.100q: want lower-case letters, digits, and inside also - _ and dots, at most 63", name)
	}
	return nil
}

// DefaultTag is the tag of a template if none is named.
const DefaultTag = "default"

// TemplateRef refers to a template or one of its builds.
type TemplateRef struct {
	// Owner owns the template. Default: not named.
	Owner string
	// Name is the template's name or ID, or the ID of a build.
	Name string
	// Tag is a tag of the template, or the ID of a build. Default: not named.
	Tag string
}

// ParseTemplateRef parses [OWNER/]NAME[:TAG]. It does not check that the parts exist.
func ParseTemplateRef(text string) TemplateRef {
	var r TemplateRef
	if i := strings.LastIndexByte(text, '/'); i > 0 {
		r.Owner, text = text[:i], text[i+1:]
	}
	r.Name, r.Tag, _ = strings.Cut(text, ":")
	return r
}

// String returns the text that ParseTemplateRef parses.
func (r TemplateRef) String() string {
	text := r.Name
	if r.Owner != "" {
		text = r.Owner + "/" + text
	}
	if r.Tag != "" {
		text += ":" + r.Tag
	}
	return text
}

// IsID reports whether the name is the ID of a template or of a build.
func (r TemplateRef) IsID() bool {
	return TemplateID(r.Name).Validate() == nil || BuildID(r.Name).Validate() == nil
}

// FullName returns OWNER/NAME, which refers to the template for every owner.
func (t Template) FullName() string { return TemplateRef{Owner: t.Owner, Name: t.Name}.String() }

// TemplatePrefix begins the Spec.Image of a sandbox that is created from a template:
// "template:" and a TemplateRef.
const TemplatePrefix = "template:"

// Template returns the template that i names, if it names one.
func (i Image) Template() (ref string, ok bool) {
	return strings.CutPrefix(string(i), TemplatePrefix)
}

// Template is an image that was built here, possibly with running programs, from which
// sandboxes are created.
type Template struct {
	ID TemplateID `json:"id"`
	// Name is unique for its Owner.
	Name  string `json:"name"`
	Owner string `json:"owner,omitempty"`
	// Public lets every owner create sandboxes from it, as OWNER/NAME.
	Public bool `json:"public"`
	// Shared says that an administrator published it: for an owner without a template of
	// that name, the name alone refers to it.
	Shared bool `json:"shared,omitempty"`
	// Tags maps tags to builds that are ready.
	Tags      map[string]BuildID `json:"tags"`
	CreatedAt time.Time          `json:"created_at"`
	// UpdatedAt is when a build was last started or tagged.
	UpdatedAt time.Time `json:"updated_at"`
	// Spawned is how many sandboxes were created from it.
	Spawned int64 `json:"spawned"`
}

// BuildStatus is the status of a build.
type BuildStatus string

// The statuses. The last two are final.
const (
	BuildWaiting  BuildStatus = "waiting"
	BuildBuilding BuildStatus = "building"
	BuildReady    BuildStatus = "ready"
	BuildFailed   BuildStatus = "failed"
)

// Valid reports whether s is one of the statuses.
func (s BuildStatus) Valid() bool {
	return s == BuildWaiting || s == BuildBuilding || s.Ended()
}

// Ended reports whether s is final.
func (s BuildStatus) Ended() bool { return s == BuildReady || s == BuildFailed }

// BuildReason says why a build failed.
type BuildReason struct {
	// Message is for people. Default: the build did not fail.
	Message string `json:"message,omitempty"`
	// Step is the step that failed, as written in the recipe. Default: none.
	Step string `json:"step,omitempty"`
}

// TemplateBuild is one build of a template.
type TemplateBuild struct {
	ID       BuildID     `json:"id"`
	Template TemplateID  `json:"template"`
	Status   BuildStatus `json:"status"`
	// Tags are set when it is ready.
	Tags   []string    `json:"tags,omitempty"`
	Reason BuildReason `json:"reason,omitzero"`
	// Recipe is what it is built from. Default: it has not started.
	Recipe Recipe `json:"recipe,omitzero"`
	// Image is the image of its sandboxes. Snapshot is the snapshot they start from if the
	// template has running programs.
	Image    Image      `json:"image,omitempty"`
	Snapshot SnapshotID `json:"snapshot,omitempty"`
	// Size is its size on disk, in bytes.
	Size int64 `json:"size"`
	// Resources are the default limits of its sandboxes.
	Resources  Resources `json:"resources,omitzero"`
	CreatedAt  time.Time `json:"created_at"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// BuildLog is one line of the log of a build.
type BuildLog struct {
	// Seq counts from 1 without gaps.
	Seq int64     `json:"seq"`
	At  time.Time `json:"at"`
	// Step is the step's number, 0 for none.
	Step int `json:"step,omitempty"`
	// Error says that the line is the reason for a failure.
	Error bool   `json:"error,omitempty"`
	Text  string `json:"text"`
}

// TemplateOrigin is the template that a sandbox was created from.
type TemplateOrigin struct {
	Template TemplateID `json:"template"`
	Build    BuildID    `json:"build"`
	// Name is the name of the template, with the tag if one was requested.
	Name string `json:"name"`
}
