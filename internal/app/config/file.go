package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// maxFile bounds the configuration file, in bytes. It also bounds how deep
// the decoder can be made to recurse.
const maxFile = 64 << 10

// readBounded is os.ReadFile for a file of sensible size.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// ownSections are the ones that are ours: those of settings.
func ownSections() []string {
	var names []string
	for _, s := range allSettings() {
		if section, _ := s.key.splitKey(); section != "" && !slices.Contains(names, section) {
			names = append(names, section)
		}
	}
	return names
}

// loadFile reads the file into the configuration. Without an explicit name a
// file that does not exist is an empty one.
func (l *loader) loadFile() {
	name, source := l.opts.File, "--config"
	if name == "" {
		name, source = l.env["SANDPIT_CONFIG"], "SANDPIT_CONFIG"
	}
	explicit := name != ""
	if !explicit {
		if name = l.defaultFile(); name == "" {
			return
		}
		source = name
	}
	data, err := l.opts.ReadFile(name)
	switch {
	case err != nil && !explicit && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)):
		return
	case err != nil:
		l.problems.addProblem(Problem{Source: source, Text: readFailure(name, err)})
		return
	case len(data) > maxFile:
		l.problems.addProblem(Problem{Source: source, Text: name + " is larger than 64 KiB"})
		return
	}
	l.cfg.File = name
	l.loadTOML(name, string(data))
}

// readFailure says in one line why a file cannot be read.
func readFailure(name string, err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err // the path is said once
	}
	return fmt.Sprintf("cannot read %s: %v", name, err)
}

func (l *loader) loadTOML(name, text string) {
	before := len(l.problems.List)
	var top table
	meta, err := toml.Decode(text, &top)
	if err != nil {
		l.problems.addProblem(syntaxProblem(name, err))
		return
	}
	f := file{loader: l, name: name, meta: meta}
	for _, e := range f.listEntries(top) {
		f.loadTop(e)
	}
	slices.SortStableFunc(l.problems.List[before:], func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
}

// file is one file being loaded.
type file struct {
	*loader
	name string
	meta toml.MetaData
}

// table is a TOML table whose values are decoded one by one, because only then does the
// decoder report their lines.
type table map[string]toml.Primitive

// entry is one line of a table.
type entry struct {
	name  string
	value any
	raw   toml.Primitive
	line  int // 0 if the decoder does not know
	start int // byte offset, for the order
}

// listEntries returns the lines of a table in file order.
func (f *file) listEntries(t table) []entry {
	list := make([]entry, 0, len(t))
	for name, raw := range t {
		e := entry{name: name, raw: raw}
		e.value, e.line, e.start = f.locateValue(raw)
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.name, b.name))
	})
	return list
}

// locateValue returns a value and its position. The decoder reports positions only in errors,
// so the value is decoded into a type that always returns an error.
func (f *file) locateValue(raw toml.Primitive) (value any, line, start int) {
	var c catcher
	err := f.meta.PrimitiveDecode(raw, &c)
	if at, ok := errors.AsType[toml.ParseError](err); ok {
		line, start = at.Position.Line, at.Position.Start
	}
	return c.value, line, start
}

type catcher struct{ value any }

var errCaught = errors.New("caught")

// UnmarshalTOML stores the value and fails, so that the decoder reports the position.
func (c *catcher) UnmarshalTOML(value any) error {
	c.value = value
	return errCaught
}

// loadTop takes one entry from outside all sections, or one whole section.
func (f *file) loadTop(e entry) {
	if slices.Contains(ownSections(), e.name) {
		f.loadSection(e)
		return
	}
	key := Key(e.name)
	switch e.value.(type) {
	case map[string]any, []map[string]any:
		if key != KeyPool {
			f.ignoreSection(e)
			return
		}
	}
	if section, _ := key.splitKey(); section == "" && f.applyValue(key, e.value, f.name, e.line) {
		return
	}
	text := unknownKey(e.name, namesIn(""))
	if slices.Contains(namesIn("sandbox"), e.name) {
		text = "stands outside of its section; write it below [sandbox]"
	}
	f.addProblem(e, key, text)
}

// ignoreSection leaves a section to the program it is for, unless it looks
// like one of ours, misspelt.
func (f *file) ignoreSection(e entry) {
	for _, ours := range append(ownSections(), string(KeyPool)) {
		if isMisspelled(e.name, ours) {
			f.addProblem(e, Key(e.name), fmt.Sprintf("unknown section; did you mean [%s]?", ours))
			return
		}
	}
	f.cfg.Ignored = append(f.cfg.Ignored, toPrintable(e.name))
}

// isMisspelled reports whether a section is likely meant to be ours. A short name is
// easily a letter or two away from another program's: [llm], [tool].
func isMisspelled(name, ours string) bool {
	if len(ours) <= 4 {
		return editDistance(strings.ToLower(name), ours) <= 1 && strings.EqualFold(name[:min(1, len(name))], ours[:1])
	}
	return suggestName(name, []string{ours}) == ours && editDistance(name, ours) <= 2
}

func (f *file) loadSection(e entry) {
	if _, ok := e.value.(map[string]any); !ok {
		f.addProblem(e, Key(e.name), fmt.Sprintf("is not a section; write [%s] on a line of its own", e.name))
		return
	}
	var t table
	if err := f.meta.PrimitiveDecode(e.raw, &t); err != nil {
		f.addProblem(e, Key(e.name), "is not a section: "+redactMessage(err.Error()))
		return
	}
	for _, sub := range f.listEntries(t) {
		if _, isTable := sub.value.(map[string]any); isTable && e.name == sectionLLM {
			f.loadNamedLLM(sub)
			continue
		}
		key := Key(e.name + "." + sub.name)
		if other, ok := otherNames()[key]; ok {
			f.applyOtherName(sub, key, other, t)
			continue
		}
		if !f.applyValue(key, sub.value, f.name, sub.line) {
			f.addProblem(sub, key, unknownKey(sub.name, namesIn(e.name)))
		}
	}
}

// applyOtherName takes a line of a section that has another name of a setting.
func (f *file) applyOtherName(e entry, key Key, other otherName, section table) {
	_, name := other.key.splitKey()
	value, ok := other.read(e.value)
	switch _, both := section[name]; {
	case both:
		f.addProblem(e, key, fmt.Sprintf("stands beside %s; write one of them", name))
	case !ok:
		f.addProblem(e, key, shortValue(e.value)+" is not a number of minutes above 0")
	default:
		f.applyValue(other.key, value, f.name, e.line)
	}
}

func (f *file) addProblem(e entry, key Key, text string) {
	f.problems.addProblem(Problem{Source: f.name, Line: e.line, Key: Key(toPrintable(string(key))), Text: text})
}

func syntaxProblem(name string, err error) Problem {
	p := Problem{Source: name, Text: "not valid TOML: " + redactMessage(err.Error())}
	if at, ok := errors.AsType[toml.ParseError](err); ok {
		p.Line, p.Text = at.Position.Line, "not valid TOML: "+redactMessage(at.Message)
		if strings.Contains(at.Message, `'\n'`) && p.Line > 1 {
			p.Line-- // the end of a line counts as the next one
		}
	}
	return p
}

// quoted matches what the decoder repeats of the file, and long numbers.
// A quoted quote comes first, so that the quotes behind it are taken in pairs.
var quoted = pattern.New(`'''|"[^"]*"|'[^']*'|\d{4,}`)

// harmless is a single character, or the escape of one.
var harmless = pattern.New(`^['"]\\?.['"]$|^['"]{2}$`)

// redactMessage removes pieces of the file from a message of the decoder: the line may contain
// an API key in a section of another program. The name of a duplicate key is not a secret.
func redactMessage(message string) string {
	if strings.HasPrefix(message, "Key '") && !hasControl(message) {
		return message
	}
	return quoted().ReplaceAllStringFunc(message, func(found string) string {
		if harmless().MatchString(found) {
			return found
		}
		return "..."
	})
}
