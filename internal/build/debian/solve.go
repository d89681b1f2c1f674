package debian

import (
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// basePackages are needed to install other packages, besides the essential ones. The first
// prevents the installation of a package that merges directories, which are merged already.
var basePackages = []string{"usr-is-merged", "apt"}

// solver chooses packages and their dependencies. Of several alternatives it takes the first
// available one. It does not check conflicts: apt does that during the installation.
type solver struct {
	*index
	chosen map[string]*candidate
	queue  []*candidate
}

// solvePackages returns the wanted packages with all dependencies, by name.
func (x *index) solvePackages(wanted []string) ([]Package, error) {
	s := &solver{index: x, chosen: map[string]*candidate{}}
	for _, name := range slices.Sorted(maps.Keys(x.versions)) {
		if newest := x.versions[name][0]; newest.essential {
			s.choosePackage(newest)
		}
	}
	for _, name := range basePackages {
		if list := x.versions[name]; len(list) > 0 {
			s.choosePackage(list[0])
		}
	}
	if err := s.chooseNeeded(); err != nil {
		return nil, err
	}
	for _, c := range s.chosen {
		c.First = true
	}
	for _, want := range wanted { // all, before their dependencies are chosen
		if err := s.choosePinned(want); err != nil {
			return nil, err
		}
	}
	if err := s.chooseNeeded(); err != nil {
		return nil, err
	}
	list := make([]Package, 0, len(s.chosen))
	for _, name := range slices.Sorted(maps.Keys(s.chosen)) {
		list = append(list, s.chosen[name].Package)
	}
	return list, nil
}

func (s *solver) choosePackage(c *candidate) {
	if s.chosen[c.Name] == nil {
		s.chosen[c.Name] = c
		s.queue = append(s.queue, c)
	}
}

// choosePinned chooses a requested package: NAME or NAME=VERSION.
func (s *solver) choosePinned(text string) error {
	name, version, pinned := strings.Cut(text, "=")
	for _, c := range s.versions[name] {
		if !pinned || c.Version == version {
			if have := s.chosen[name]; have != nil && have != c {
				return sandpit.Errorf(sandpit.Invalid, "package %s: version %s is required, but another one is requested", name, have.Version)
			}
			s.choosePackage(c)
			return nil
		}
	}
	if len(s.versions[name]) == 0 && len(s.provided[name]) > 0 && !pinned {
		s.choosePackage(s.provided[name][0].candidate)
		return nil
	}
	err := sandpit.Errorf(sandpit.NotFound, "package %s not found", text)
	if len(s.versions[name]) > 0 {
		err = sandpit.WithHint(err, "the newest version is "+s.versions[name][0].Version)
	}
	return err
}

// chooseNeeded chooses the dependencies of all chosen packages.
func (s *solver) chooseNeeded() error {
	for len(s.queue) > 0 {
		c := s.queue[0]
		s.queue = s.queue[1:]
		for _, need := range c.needs {
			if !s.meetNeed(need) {
				return sandpit.Errorf(sandpit.Invalid, "package %s depends on %.200s, which does not exist", c.Name, need)
			}
		}
	}
	return nil
}

// meetNeed chooses one of a dependency's alternatives, unless one is chosen. It returns false
// if none is available.
func (s *solver) meetNeed(need string) bool {
	var relations []relation
	for text := range strings.SplitSeq(need, "|") {
		relations = append(relations, parseRelation(text))
	}
	if slices.ContainsFunc(relations, s.isMet) {
		return true
	}
	for _, r := range relations {
		for _, c := range s.versions[r.name] {
			if s.chosen[c.Name] == nil && r.isMetBy(c.Version) {
				s.choosePackage(c)
				return true
			}
		}
		for _, p := range s.provided[r.name] {
			if s.chosen[p.Name] == nil && r.isMetByProvided(p.version) {
				s.choosePackage(p.candidate)
				return true
			}
		}
	}
	return false
}

func (s *solver) isMet(r relation) bool {
	if c := s.chosen[r.name]; c != nil && r.isMetBy(c.Version) {
		return true
	}
	return slices.ContainsFunc(s.provided[r.name], func(p provider) bool {
		return s.chosen[p.Name] == p.candidate && r.isMetByProvided(p.version)
	})
}

// relation is a dependency on another package: "libc6 (>= 2.36)".
type relation struct{ name, operator, version string }

func parseRelation(text string) relation {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ":") // libc6:any
	rest, _, _ = strings.Cut(rest, ")")
	rest = strings.TrimSpace(rest)
	operator, version := splitBefore(rest, func(r rune) bool { return !strings.ContainsRune("<>=", r) })
	return relation{name, operator, strings.TrimSpace(version)}
}

// parseProvided parses what a package provides: "python3-foo (= 1.2)".
func parseProvided(text string) (name, version string) {
	r := parseRelation(text)
	return r.name, r.version
}

// isMetBy reports whether a version satisfies the relation.
func (r relation) isMetBy(version string) bool {
	c := compareVersions(version, r.version)
	switch r.operator {
	case "":
		return true
	case "<<":
		return c < 0
	case "<=":
		return c <= 0
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	case ">>":
		return c > 0
	}
	return false
}

// isMetByProvided reports whether a provided package satisfies the relation; its version may be "".
func (r relation) isMetByProvided(version string) bool {
	return r.operator == "" || version != "" && r.isMetBy(version)
}
