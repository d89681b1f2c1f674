module github.com/sandpit-dev/sandpit/tools/fresh

go 1.26.3
