package sandpit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPublicTypes checks that the exported names of the public packages mention no internal
// package: a program outside of this module could neither name such a type nor read its
// documentation.
func TestPublicTypes(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "agent", "agent/model", "api", "client"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no Go files in %s: %v", dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range internalMentions(file) {
				t.Errorf("%s: %s", name, c)
			}
		}
	}
}

// TestPublicTypesCatches plants breaches of the rule.
func TestPublicTypesCatches(t *testing.T) {
	t.Parallel()
	const header = "package p\nimport (\n\"io\"\n\"" + module + "/internal/front/wire\"\nother \"" + module + "/internal/app/config\"\n)\n"
	for text, want := range map[string]int{
		"type T = wire.Page":                                   1,
		"type T struct { A []other.Config; b wire.Page }":      1,
		"type T struct { wire.Page }":                          1,
		"func F(p map[string]*wire.Page) (io.Reader, error)":   1,
		"var V wire.Page":                                      1,
		"type T[E wire.Page] struct{}":                         1,
		"type T struct{}\nfunc (T) F(o other.Config)":          1,
		"type I interface { F() wire.Page }":                   1,
		"type t struct { A wire.Page }\nfunc (t) F(wire.Page)": 0,
		"func F(r io.Reader) { _ = wire.Page{} }":              0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", header+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := internalMentions(file); len(got) != want {
			t.Errorf("%s: %q, want %d complaints", text, got, want)
		}
	}
}

// internalMentions returns a complaint for each exported declaration whose type refers to an
// internal package of this module.
func internalMentions(file *ast.File) (complaints []string) {
	internal := map[string]string{}
	for _, spec := range file.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(target, module+"/internal/") {
			continue
		}
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		internal[name] = target
	}
	check := func(name string, types ...ast.Node) {
		for _, node := range types {
			ast.Inspect(node, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.StructType:
					n.Fields.List = exportedFields(n.Fields.List)
				case *ast.SelectorExpr:
					if id, ok := n.X.(*ast.Ident); ok && internal[id.Name] != "" {
						complaints = append(complaints, fmt.Sprintf("%s mentions %s.%s of %s", name, id.Name, n.Sel.Name, internal[id.Name]))
					}
				}
				return true
			})
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && isExportedReceiver(d.Recv) {
				check(d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						check(s.Name.Name, s)
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						check(s.Names[0].Name, s.Type)
					}
				}
			}
		}
	}
	return complaints
}

// exportedFields returns the fields that other packages see: those with an exported name, and
// embedded ones.
func exportedFields(list []*ast.Field) (exported []*ast.Field) {
	for _, f := range list {
		if len(f.Names) == 0 || f.Names[0].IsExported() {
			exported = append(exported, f)
		}
	}
	return exported
}

// isExportedReceiver reports whether a function has no receiver or one of an exported type.
func isExportedReceiver(receiver *ast.FieldList) bool {
	if receiver == nil {
		return true
	}
	t := receiver.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}
