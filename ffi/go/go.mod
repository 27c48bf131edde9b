module qk

go 1.19
